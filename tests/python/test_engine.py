"""mc.Engine: two of them in one process, and batches."""
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
