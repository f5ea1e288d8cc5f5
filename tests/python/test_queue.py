"""mc.Queue and blocks of a KV cache."""
import array
import hashlib
import select
import threading
import time

import mc
import pytest


def hashes(*numbers):
    return [hashlib.sha256(bytes([n])).digest() for n in numbers]


def taken(queue, count):
    """The next `count` calls that are done."""
    found = []
    deadline = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < deadline, f'{len(found)} of {count} calls are done'
        select.select([queue], [], [], 5)
        found += queue.take()
    return found


@pytest.fixture
def queue(store):
    with store.queue() as q:
        yield q


def test_calls_on_a_queue(store, queue):
    into = {'q1': bytearray(3), 'q2': bytearray(2), 'none': bytearray(2)}
    put = queue.put_many({'q1': b'one', 'q2': [b't', b'w']}, context='first')
    with pytest.raises(ValueError, match='not taken'):
        put.result()
    assert taken(queue, 1) == [put] and put.done and put.context == 'first'
    assert (put.code, put.failed, put.bytes) == (mc.Code.OK, 0, 5)
    assert put.result()['q2'] == (mc.Code.OK, 2, mc.Put.STORED)
    got, found = queue.get_many_into(into), queue.exists_many(['q1', 'none'])
    assert {f.tag for f in taken(queue, 2)} == {got.tag, found.tag}
    assert (got.failed, got.bytes, found.failed) == (1, 5, 1)
    assert [r.code for r in got.result().values()] == [0, 0, mc.Code.NOT_FOUND]
    assert into['q1'] == b'one' and into['q2'] == b'tw' and found.result() == [True, False]
    assert queue.take() == [] and len(queue) == 0 and not queue.wait(0)


def test_memory_in_flight_is_referenced_until_its_call_is_taken(store, queue):
    into = bytearray(4)
    got = queue.get_many_into({'later': into}, wait=20)
    with pytest.raises(BufferError):
        into.append(0)
    store_b = mc.Store(store.master)
    store_b.put('later', b'here')
    store_b.close()
    assert taken(queue, 1) == [got] and into == b'here'
    into.append(0)


def test_a_layout_that_only_its_call_has_is_closed_once_that_is_taken(cluster):
    store = mc.Store(cluster.master)
    memory, ended = bytearray(b'aabbcc'), []

    def work():
        queue = store.queue()
        put = queue.put_blocks(store.layout([mc.Region(memory, 2)], 3), 'layout@', hashes(1, 2), [0, 1])
        ended.append(taken(queue, 1) == [put] and put.code)
        ended.append(store.put_blocks(store.layout([mc.Region(memory, 2)], 3), 'layout@', hashes(3), [2]).failed())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert ended == [mc.Code.OK, []]
    memory.append(0)  # nothing uses it any more
    store.close()


def test_a_cancelled_call_touches_nothing_once_it_is_taken(store):
    with store.queue(threads=1) as queue:
        into = bytearray(b'kept')
        first = queue.get_many_into({'never': bytearray(1)}, wait=1)
        second = queue.get_many_into({'cancelled': into}, wait=20)
        queue.cancel(second)
        done = taken(queue, 2)
        assert set(done) == {first, second} and second.code in (mc.Code.UNAVAILABLE, mc.Code.OK)
        if second.code is mc.Code.UNAVAILABLE:
            with pytest.raises(mc.Unavailable):
                second.result()
        store.put('cancelled', b'late')
        assert into == b'kept'
        queue.cancel(second)  # done already


def test_a_full_queue_is_busy(store):
    with store.queue(threads=1, depth=2) as queue:
        flights = [queue.get_many_into({'never': bytearray(1)}, wait=1) for _ in range(2)]
        with pytest.raises(mc.Busy):
            queue.exists_many(['a'])
        assert len(queue) == 2
        assert set(taken(queue, 2)) == set(flights)


def test_closing_gives_up_what_is_not_taken(store):
    queue = store.queue(threads=1)
    into = bytearray(1)
    flight = queue.get_many_into({'never': into}, wait=1)
    waits = queue.get_many_into({'never': into}, wait=20)
    queue.close()
    assert flight.done and waits.done and len(queue) == 0
    with pytest.raises(mc.McError):
        waits.result()
    into.append(0)
    with pytest.raises(mc.Invalid, match='is closed'):
        queue.take()


def test_blocks(store, queue):
    keys, values = bytearray(64 * 10), bytearray(100 * 10)
    for n in range(10):
        keys[64 * n:64 * n + 64] = bytes([n]) * 64
        values[100 * n:100 * n + 100] = bytes([100 + n]) * 100
    # Keys in two rows of 16 bytes of each block's 64; values in one piece.
    regions = [mc.Region(keys, 16, stride=64, rows=2, row_stride=32), mc.Region(values, 100)]
    with store.layout(regions, blocks=10) as layout:
        assert layout.bytes == 132
        done = store.put_blocks(layout, 'm@', hashes(1, 2, 3), [1, 2, 3])
        assert list(done.codes) == [0] * 3 and list(done.bytes) == [132] * 3 and len(done) == 3
        assert list(done.flags) == [mc.Put.STORED] * 3 and done.failed() == []
        assert store.get('m@' + hashes(2)[0].hex()) == bytes([2]) * 32 + bytes([102]) * 100
        assert store.match_blocks(['m@'], hashes(1, 2, 3, 4)) == 3
        assert store.match_blocks(['m@', 'other@'], hashes(1, 2)) == 0
        got = store.get_blocks(layout, 'm@', b''.join(hashes(3, 9, 1)), array.array('I', [7, 8, 9]))
        assert got.failed() == [1] and list(got.codes) == [0, mc.Code.NOT_FOUND, 0]
        assert keys[64 * 7:64 * 7 + 64] == (bytes([3]) * 16 + bytes([7]) * 16) * 2
        assert values[700:800] == bytes([103]) * 100 and values[900:] == bytes([101]) * 100
        saved = queue.put_blocks(layout, 'q@', hashes(5), [5], regions=(1, 1),
                                 options=mc.PutOptions(replicas=2))
        assert taken(queue, 1) == [saved] and saved.result().failed() == []
        assert store.get('q@' + hashes(5)[0].hex()) == bytes([105]) * 100
        loaded = queue.get_blocks(layout, 'q@', hashes(5), [0], regions=(1, 1))
        assert taken(queue, 1) == [loaded] and loaded.failed == 0 and values[:100] == bytes([105]) * 100
        beyond = store.put_blocks(layout, 'm@', hashes(6, 7), [10, 4])
        assert list(beyond.codes) == [mc.Code.INVALID, 0]
        with pytest.raises(ValueError, match='want 32 for each'):
            store.put_blocks(layout, 'm@', hashes(1), [1, 2])
    with pytest.raises(mc.Invalid, match='is closed'):
        store.get_blocks(layout, 'm@', hashes(1), [1])
    keys.append(0)


def test_what_a_layout_refuses(store):
    for regions, blocks in (([], 1), ([mc.Region(bytearray(10), 10)], 0),
                            ([mc.Region(bytearray(100), 10, stride=5)], 3)):
        with pytest.raises((mc.Invalid, ValueError)):
            store.layout(regions, blocks)
    with pytest.raises(BufferError):
        store.layout([mc.Region(b'read-only', 1)], 1)


def test_a_layout_stays_while_a_call_uses_it(store):
    memory = bytearray(40)
    layout = store.layout([mc.Region(memory, 10)], 4)
    queue = store.queue(threads=1)
    flight = queue.get_blocks(layout, 'never@', hashes(1), [1], wait=1)
    assert not layout._handle.close(0)
    assert taken(queue, 1) == [flight] and flight.failed == 1
    layout.close()
    memory.append(0)
    queue.close()
