"""Memory, queues and stores that are closed while calls use them."""
import hashlib
import threading
import time

import mc
import mc._handle
import mc.engine
import pytest


def landed(queue, flight):
    deadline = time.monotonic() + 60
    while not flight.done:
        assert time.monotonic() < deadline
        queue.wait(5)
        queue.take()
    return flight


def test_memory_stays_until_the_call_on_a_queue_is_taken(store):
    with store.queue() as queue:
        with store.allocate(1 << 20) as memory:
            got = queue.get_many_into({'queued': memory}, wait=30)
        assert not memory._handle._freed
        for refused in (lambda: queue.get_many_into({'queued': memory}), lambda: memory[:5],
                        lambda: store.put('other', memory), lambda: memory.view):
            with pytest.raises(BufferError, match='closed'):
                refused()
        store.put('queued', bytes(1 << 20))
        assert landed(queue, got).bytes == 1 << 20 and memory._handle._freed
        again = store.allocate(10)
        put = queue.put_many({'from memory': [again[:4], b'-', again[4:]]})
        again.close()
        assert landed(queue, put).code == mc.Code.OK and again._handle._freed


def test_memory_in_flight_is_freed_with_its_store(cluster):
    store = mc.Store(cluster.master)
    memory, queue = store.allocate(4096), store.queue()
    flight = queue.get_many_into({'never': memory}, wait=30)
    memory.close()
    assert not memory._handle._freed
    store.close()
    assert flight.done and memory._handle._freed and store._handle._freed


def test_memory_that_another_engine_uses_outlives_its_own():
    with mc.Engine('use-there') as there, there.allocate(4096), mc.Engine('use-other') as other:
        mine = mc.Engine('use-mine')
        memory = mine.allocate(4096)
        with other.batch() as batch:
            batch.read(memory, other.open(there.address, timeout=20))
            batch.submit()
            memory.close()
            mine.close()
            assert not memory._handle._freed and not mine._handle._freed
            batch.wait(timeout=20)
        assert memory._handle._freed and mine._handle._freed


def test_memory_stays_until_the_batch_is_closed():
    with mc.Engine('use-a') as a, mc.Engine('use-b') as b, b.allocate(8192) as theirs:
        peer = a.open(b.address, timeout=20)
        theirs.view[:] = b'x' * 8192
        first, second = a.allocate(8192), a.allocate(8192)
        with a.batch() as batch, a.prepare() as prepared:
            batch.read(first, peer, theirs.offset)
            batch.submit()
            first.close()
            batch.wait(timeout=20)
            prepared.read(second, peer, theirs.offset)
            started = prepared.start()
            second.close()
            started.wait(timeout=20)
            assert not first._handle._freed and not second._handle._freed
            started.close()
            assert second._handle._freed
            with pytest.raises(BufferError, match='closed'):
                prepared.run()
        assert first._handle._freed


def test_a_layout_keeps_its_memory_and_refuses_calls_once_that_is_closed(store):
    memory = store.allocate(8192)
    hashed = [hashlib.sha256(b'1').digest()]
    with store.queue() as queue, store.layout([mc.Region(memory, 4096)], 2) as layout:
        assert store.put_blocks(layout, 'closing@', hashed, [1]).failed() == []
        flight = queue.get_blocks(layout, 'closing@', hashed, [0])
        memory.close()
        assert landed(queue, flight).failed == 0
        for refused in (store.put_blocks, store.get_blocks, queue.put_blocks, queue.get_blocks):
            with pytest.raises(BufferError, match='closed'):
                refused(layout, 'closing@', hashed, [1])
        assert not memory._handle._freed
    assert memory._handle._freed


def test_nothing_is_closed_by_the_call_that_uses_it(store):
    store.put('own', b'value')
    with store.allocate(5) as memory:
        for closed in (memory, store.engine, store):
            with pytest.raises(mc.Invalid, match='a call of this thread'):
                store.get_into('own', memory, progress=lambda done, total: closed.close())
            with pytest.raises(mc.Invalid, match='a call of this thread'):
                store.put('another', memory, mc.PutOptions(replace=True),
                          progress=lambda done, total: closed.close())
        assert store.get_into('own', memory) == 5 and memory.view == b'value'


def test_closing_memory_waits_for_a_call_of_another_thread(monkeypatch):
    with mc.Engine('use-c') as c, c.allocate(4096), mc.Engine('use-d') as d:
        peer, memory, seen = d.open(c.address, timeout=20), d.allocate(4096), []
        real, closer = mc.engine.lib, threading.Thread(target=memory.close)

        class Slow:
            """Closes the memory before the transfer begins."""

            def __getattr__(self, name):
                return getattr(real, name)

            def mc_transfer(self, *arguments):
                closer.start()
                while not memory._handle.closed:
                    pass
                real.mc_transfer(*arguments)
                seen.append(memory._handle._freed)

        monkeypatch.setattr(mc.engine, 'lib', Slow())
        peer.read(memory, timeout=20)
        closer.join(60)
        assert seen == [False] and memory._handle._freed
        with pytest.raises(BufferError, match='closed'):
            peer.read(memory, timeout=20)


@pytest.mark.parametrize('what', ['queue', 'store'])
def test_closing_wakes_who_waits_for_a_queue(cluster, what):
    store, ended = mc.Store(cluster.master), []
    queue = store.queue()
    flight = queue.get_many_into({'never': bytearray(1)}, wait=30)

    def wait():
        with pytest.raises(mc.Invalid, match='is closed'):
            queue.wait(3600)
        ended.append(True)

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    while not any(map(mc._handle._in_use, tuple(queue._handle._calls.values()))):
        pass
    closer = threading.Thread(target=(queue if what == 'queue' else store).close, daemon=True)
    closer.start()
    closer.join(60)
    waiter.join(60)
    assert ended and not closer.is_alive() and flight.done
    store.close()
