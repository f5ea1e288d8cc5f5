"""mc.Engine: two of them in one process, and batches."""
import array
import select
import time

import mc
import pytest


@pytest.fixture(scope='module')
def pair():
    with mc.Engine('py-a') as a, mc.Engine('py-b', listen='127.0.0.1:0') as b:
        yield a, b


def test_read_and_write(pair):
    a, b = pair
    with a.allocate(1 << 20) as mine, b.allocate(1 << 20) as theirs:
        peer = a.open(b.address, timeout=20)
        assert peer.nbytes >= theirs.offset + (1 << 20)
        theirs.view[:5] = b'there'
        peer.read(mine[:5], theirs.offset, timeout=20)
        assert mine.view[:5] == b'there'
        peer.write(b'from bytes', theirs.offset + 100, timeout=20)
        assert theirs.view[100:110] == b'from bytes'
        into = bytearray(10)
        peer.read(into, theirs.offset + 100)
        assert into == b'from bytes'
        peer.close()


def test_a_batch(pair):
    a, b = pair
    with a.allocate(8192) as mine, b.allocate(8192) as theirs:
        peer = a.open(b.address, timeout=20)
        mine.view[:] = bytes(range(256)) * 32
        with a.batch() as batch:
            for i in range(8):
                part = slice(1024 * i, 1024 * (i + 1))
                assert batch.write(mine[part], peer, theirs.offset + 1024 * (7 - i),
                                   priority=mc.Priority.HIGH) == i
            batch.wait(timeout=20)
            assert len(batch) == 8
            assert [batch.status(i) for i in range(8)] == [
                (mc.State.COMPLETED, mc.Code.OK, 1024)] * 8
            with pytest.raises(mc.NotFound):
                batch.status(8)
        assert bytes(theirs.view) == bytes(mine.view)
        with a.batch() as batch:
            batch.read(mine[:10], peer, theirs.offset, timeout=20)
            batch.cancel()


def test_many_requests_in_one_step(pair):
    a, b = pair
    with a.allocate(8192) as mine, b.allocate(8192) as theirs:
        peer = a.open(b.address, timeout=20)
        theirs.view[:] = bytes(i // 32 for i in range(8192))
        here, there = [0, 1024, 4096], array.array('q', [512, 2048, 0])
        with a.batch() as batch:
            assert batch.read_many(mine, peer, here, [theirs.offset + n for n in there], 100) == \
                range(3)
            assert batch.read(mine[8000:8010], peer, theirs.offset) == 3
            assert batch.read_many(mine[5000:], peer, (10, 40), (theirs.offset,) * 2, (20, 30),
                                   priority=mc.Priority.LOW, timeout=20) == range(4, 6)
            batch.wait(timeout=20)
            assert [batch.status(i).bytes for i in range(6)] == [100, 100, 100, 10, 20, 30]
        for h, t in zip(here, there):
            assert mine.view[h:h + 100] == theirs.view[t:t + 100]
        assert mine.view[5010:5030] == theirs.view[:20] and mine.view[5040:5070] == theirs.view[:30]
        mine.view[:] = bytes(range(256)) * 32
        with a.batch() as batch:
            batch.write_many(mine, peer, range(0, 8192, 4096), [theirs.offset, theirs.offset + 9], 5)
            batch.wait(timeout=20)
        assert theirs.view[:14] == bytes([0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 1, 2, 3, 4])
        with a.batch() as batch:
            for wrong in (([8190], [0], 3), ([-1], [0], 3), ([0], [-1], 3), ([0, 1], [0], 3),
                          ([0], [0], [1, 2]), ([0], [1 << 64], 1)):
                with pytest.raises(ValueError):
                    batch.read_many(mine, peer, *wrong)
            with pytest.raises(TypeError):
                batch.read_many(mine, peer, 0, 0, 1)
            with pytest.raises(BufferError):
                batch.read_many(b'not writable', peer, [0], [0], 1)
            assert len(batch) == 0
            batch.wait()
        with pytest.raises(mc.Invalid, match='is closed'):
            batch.read_many(mine, peer, [0], [0], 1)
        closed = mine[:10]
    with pytest.raises(BufferError, match='is closed'):
        peer.read(closed)


def test_prepared_requests_are_run_again(pair):
    a, b = pair
    with a.allocate(8192) as mine, b.allocate(8192) as theirs:
        peer = a.open(b.address, timeout=20)
        with a.prepare() as both:
            both.read(mine[:100], peer, theirs.offset)
            both.read_many(mine, peer, [200, 4096], [theirs.offset + 512, theirs.offset], 100)
            assert len(both) == 3
            for value in (b'1', b'2'):
                theirs.view[:] = value * 8192
                both.run(timeout=20)
                assert bytes(mine.view[:301:100]) == (value + b'\0') * 2
            with pytest.raises(ValueError, match='already'):
                both.read(mine[:1], peer, theirs.offset)
            theirs.view[:] = b'3' * 8192
            with both.start(timeout=20) as batch:
                batch.wait(timeout=20)
                assert len(batch) == 3 and batch.status(2).bytes == 100
            assert mine.view[4096:4196] == b'3' * 100
        with pytest.raises(mc.Invalid, match='closed'):
            both.run()
        with a.prepare() as late:
            late.write(mine[:1], peer, theirs.offset, timeout=3)
            with pytest.raises(mc.Invalid, match='timeout_ms'):
                late.run()
        with a.prepare() as empty:
            empty.run()
        other = a.allocate(4096)
        with a.prepare() as stale:
            stale.read(other[:1], peer, theirs.offset)
            stale.run(timeout=20)
            other.close()
            for call in (stale.run, stale.start):
                with pytest.raises(BufferError, match='closed'):
                    call()


def test_prepared_requests_end_with_their_engine():
    with mc.Engine('py-owner') as owner, owner.allocate(4096) as memory:
        engine = mc.Engine('py-ends')
        mine = engine.allocate(4096)
        prepared = engine.prepare()
        prepared.read(mine, engine.open(owner.address, timeout=20), memory.offset)
        prepared.run(timeout=20)
        engine.close()
        assert prepared._handle._freed
        with pytest.raises(mc.Invalid, match='closed'):
            prepared.run()


def test_notices(pair):
    a, b = pair
    with a.allocate(4096) as mine, b.allocate(4096) as theirs:
        peer = a.open(b.address, timeout=20)
        peer.notify('plain', b'data', timeout=20)
        with a.batch() as batch:
            with pytest.raises(ValueError):
                batch.notify('behind nothing')
            mine.view[:4] = b'1234'
            batch.write(mine[:4], peer, theirs.offset)
            batch.notify('done', b'request 7')
            batch.wait(timeout=20)
            assert len(batch) == 2
        assert bytes(theirs.view[:4]) == b'1234'
        found = []
        deadline = time.monotonic() + 60
        while len(found) < 2:
            assert time.monotonic() < deadline
            select.select([b.notices_fileno()], [], [], 5)
            found += b.notices()
        assert found == [('py-a', 'plain', b'data'), ('py-a', 'done', b'request 7')]
        assert b.notices() == []


def test_addresses():
    with mc.Engine('py-tells', addresses=True) as tells, mc.Engine('py-asks') as other:
        data = bytearray(b'0123456789')
        with tells.register(data) as memory:
            peer = other.open(tells.address, timeout=20)
            offset = peer.offset_of(memory.address + 3, 4)
            into = bytearray(4)
            peer.read(into, offset, timeout=20)
            assert into == b'3456'
            with pytest.raises(mc.Invalid):
                peer.offset_of(memory.address + 3, 400)
            with pytest.raises(mc.NotFound):
                peer.offset_of(memory.address - 100_000, 1)
        back = tells.open(other.address, timeout=20)
        with other.allocate(64) as silent, pytest.raises(mc.Unsupported):
            back.offset_of(silent.address, 1)


def test_registered_memory(pair):
    a, b = pair
    data = bytearray(b'-' * 4096)
    with b.register(data) as memory, b.register(bytearray(4096), writable=False) as fixed:
        peer = a.open(b.address, timeout=20)
        peer.write(b'written', memory.offset, timeout=20)
        assert data[:8] == b'written-'
        with pytest.raises(mc.Denied):
            peer.write(b'refused', fixed.offset, timeout=20)
    data.append(1)


class OnDevice:
    """An array that another library has on a device."""

    def __init__(self, address, size, strides=None):
        self.__cuda_array_interface__ = {'shape': (size,), 'typestr': '|u1', 'version': 3,
                                         'data': (address, False), 'strides': strides}


def test_device_memory():
    with mc.Engine('py-device', devices='stand-in') as a, mc.Engine('py-host') as b:
        assert [d.location for d in a.devices()] == ['stand-in:0']
        assert a.location_of(mc.buffers.span(b'host').address) == 'cpu'
        with a.allocate(1 << 20, location='stand-in:0') as there:
            assert there.location == a.location_of(there.address) == 'stand-in:0'
            for touch in (lambda: there.view, lambda: there[:4].view,
                          lambda: there[:4].__array_interface__):
                with pytest.raises(BufferError, match='stand-in:0'):
                    touch()
            b.open(a.address, timeout=20).write(b'kept on it', there.offset + 4096, timeout=20)
            with a.register(OnDevice(there.address + 4096, 10), writable=False) as part:
                assert (part.location, part.nbytes) == ('stand-in:0', 10)
                into = bytearray(10)
                b.open(a.address, timeout=20).read(into, part.offset, timeout=20)
                assert into == b'kept on it'
                with b.allocate(10) as host:  # the device's end is the local one
                    a.open(b.address, timeout=20).write(part, host.offset, timeout=20)
                    assert host.view == b'kept on it'
            for elsewhere in (OnDevice(there.address, 2 << 20), OnDevice(1 << 46, 4096)):
                with pytest.raises((mc.Invalid, TypeError)):  # no such memory, of no device
                    a.register(elsewhere)
            for host_only in (there, there[:8]):
                with pytest.raises(BufferError, match='stand-in:0'):
                    mc.buffers.span(host_only)
            with pytest.raises(BufferError, match='contiguous'):
                a.register(OnDevice(there.address, 10, strides=(2,)))
        with mc.Engine('py-none', devices='none') as none:
            assert none.devices() == []
            with pytest.raises(mc.Unsupported, match='cuda:0'):
                none.allocate(4096, location='cuda:0')


def test_files(tmp_path):
    path = tmp_path / 'kv.bin'
    path.write_bytes(b'0123456789')
    with mc.Engine('py-file') as a, mc.Engine('py-reader') as b:
        with a.register_file(str(path)) as file:
            into = bytearray(4)
            b.open(a.address, timeout=20).read(into, file.offset + 3, timeout=20)
            assert into == b'3456'
            with pytest.raises(BufferError, match='file'):
                _ = file.view
        with pytest.raises(mc.NotFound):
            a.register_file(str(tmp_path / 'none'))


def test_errors(pair):
    a, b = pair
    with pytest.raises(mc.McError):
        a.open('127.0.0.1:9', timeout=0.2)
    with pytest.raises(mc.NoSpace):
        a.allocate(1 << 46)
    with pytest.raises(mc.Invalid):
        a.allocate(1 << 60)
    peer = a.open(b.address, timeout=20)
    with pytest.raises(mc.McError):
        peer.read(bytearray(10), 1 << 40, timeout=20)
    with pytest.raises(ValueError):
        peer.read(bytearray(10), -1)
    with pytest.raises(BufferError):
        peer.read(b'not writable', 0)
    with a.batch() as batch:
        assert len(batch) == 0
    with pytest.raises(mc.Invalid, match='is closed'):
        batch.wait()


def test_an_engine_closes_what_belongs_to_it():
    engine = mc.Engine('py-closes')
    memory, batch = engine.allocate(4096), engine.batch()
    with memory:
        engine.close()
    assert memory._handle._freed and batch._handle._freed
    with pytest.raises(mc.Invalid, match='is closed'):
        engine.allocate(4096)


def test_the_engine_of_a_store(store):
    with mc.Engine('py-visits') as other, store.allocate(4096) as memory:
        memory.view[:3] = b'abc'
        into = bytearray(3)
        other.open(store.engine.address, timeout=20).read(into, memory.offset, timeout=20)
        assert into == b'abc' and store.engine is store.engine
