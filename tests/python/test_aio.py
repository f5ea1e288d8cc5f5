"""mc.aio: the store in a loop of asyncio."""
import asyncio
import concurrent.futures
import os
import signal
import threading
import time

import mc
import mc.aio
import mc.cluster
import pytest


def run(cluster, work, **options):
    async def main():
        async with mc.aio.Store(cluster.master, **options) as s:
            return await asyncio.wait_for(work(s), 120)
    return asyncio.run(main())


def test_one_value(cluster):
    async def work(s):
        assert await s.put('a', bytearray(b'bytes')) is mc.Put.STORED
        assert await s.put('a', b'other') is mc.Put.EXISTED
        assert await s.get('a') == b'bytes' and await s.size('a') == 5
        assert await s.exists('a') and not await s.exists('b')
        into = bytearray(8)
        assert await s.get_into('a', into) == 5 and into == b'bytes\0\0\0'
        for call in (s.get, s.size, s.remove):
            with pytest.raises(mc.NotFound):
                await call('b')
        with pytest.raises(mc.NotFound, match="'b'"):
            await s.get_into('b', into)
        with pytest.raises(mc.NoSpace):
            await s.get_into('a', bytearray(4))
        await s.remove('a', force=True)
        assert (await s.health(20)).nodes == 2
    run(cluster, work)


def test_many_values(cluster):
    async def work(s):
        done, failed = await s.put_many({'m1': b'1', 'm2': [b'2', b'2'], 'nul\0': b'x'})
        assert done == {'m1': 1, 'm2': 2} and failed == {'nul\0': mc.Code.INVALID}
        one, two = bytearray(1), bytearray(2)
        done, failed = await s.get_many_into({'m1': one, 'm2': two, 'm3': bytearray(1)})
        assert done == {'m1': 1, 'm2': 2} and failed == {'m3': mc.Code.NOT_FOUND}
        assert (one, two) == (b'1', b'22')
        assert await s.get_many(['m1', 'm3', 'm2']) == {'m1': b'1', 'm2': b'22'}
        assert await s.exists_many(['m3', 'm2']) == [False, True]
        assert await s.match_prefix(['m1', 'm3']) == 1
        assert [key for key, _ in await s.list('m')] == ['m1', 'm2']
        removed = await s.remove_many(['m1'], force=True)
        assert removed['m1'].ok and await s.remove_prefix('m', force=True) == 1
    run(cluster, work)


def test_lists_without_threads(cluster, monkeypatch):
    async def work(s):
        def none(*_):
            raise AssertionError('a thread of the executor')
        with monkeypatch.context() as m:
            m.setattr(asyncio.get_running_loop(), 'run_in_executor', none)
            await s.put_many({f'l{i}': b'v' * i for i in range(1, 5)})
            assert await s.list('l', limit=2) == [('l1', 1), ('l2', 2)]
            assert await s.list('l', limit=0) == [] and await s.list('none') == []
            assert await s.size('l3') == 3  # leased: it stays
            with pytest.raises(mc.Busy) as busy:
                await s.remove_prefix('l')
            assert busy.value.removed == 3
            assert await s.list('l') == [('l3', 3)]
            assert await s.remove_prefix('l', force=True) == 1
    run(cluster, work)


def test_blocks(cluster):
    async def work(s):
        memory = bytearray(b'aaaabbbbcccc')
        with s.layout([mc.Region(memory, 4)], 3) as layout:
            hashes = [bytes([n]) * 32 for n in (1, 2)]
            assert (await s.put_blocks(layout, 'aio@', hashes, [0, 1])).failed() == []
            assert await s.match_blocks(['aio@'], hashes) == 2
            assert (await s.get_blocks(layout, 'aio@', hashes[1:], [2])).failed() == []
        assert memory == b'aaaabbbbbbbb'
    run(cluster, work)


def test_many_tasks_without_threads_of_python(cluster):
    async def work(s):
        before = threading.active_count()
        values = {f't{n}': bytes([n]) * 1000 for n in range(100)}
        await asyncio.gather(*(s.put(key, value) for key, value in values.items()))
        into = {key: bytearray(1000) for key in values}
        await asyncio.gather(*(s.get_into(key, buffer) for key, buffer in into.items()))
        assert into == values and await s.get('t1') == values['t1']
        assert await s.size('t2') == 1000 and await s.match_prefix(['t0', 't1', 'none']) == 2
        assert await s.match_blocks(['none@'], bytes(64)) == 0 and (await s.health(20)).free_bytes > 0
        with pytest.raises(mc.Busy, match="'t1'"):
            await s.remove('t1')  # it was read a moment ago
        removed = await s.remove_many(['t1', 't2', 'none'], force=True)
        assert [removed[key].code for key in ('t1', 't2', 'none')] == [mc.Code.OK, mc.Code.OK, mc.Code.NOT_FOUND]
        with pytest.raises(ValueError, match='hashes of 33 bytes'):
            await s.match_blocks(['none@'], bytes(33))
        with pytest.raises(ValueError, match='hashes of 32 bytes'):
            await s.match_blocks(['none@'], bytes(32), hash_bytes=0)
        assert threading.active_count() == before
    run(cluster, work)


def test_a_get_that_waits_and_one_that_is_cancelled(cluster):
    async def work(s):
        into, cancelled = bytearray(4), bytearray(b'kept')
        waits = asyncio.ensure_future(s.get_into('awaited', into, wait=60))
        gone = asyncio.ensure_future(s.get_into('cancelled', cancelled, wait=1))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        cancelled.append(0)  # nothing uses it any more
        with mc.Store(cluster.master) as other:
            other.put('awaited', b'here')
            other.put('cancelled', b'late')
        assert await waits == 4 and into == b'here' and cancelled == b'kept\0'
    run(cluster, work)


def test_gets_that_wait_keep_no_other_call_waiting(cluster):
    async def work(s):
        into = [bytearray(4) for _ in range(10)]
        waits = [asyncio.ensure_future(s.get_into(f'turn{n}', b, wait=3600)) for n, b in enumerate(into)]
        await asyncio.sleep(0)
        for n in reversed(range(10)):
            assert await s.put(f'turn{n}', b'here') is mc.Put.STORED
            assert await waits[n] == 4 and into[n] == b'here'
    run(cluster, work)


def test_more_calls_than_a_queue_has_by_default(cluster):
    async def work(s):
        assert not any(await asyncio.gather(*(s.exists('none') for _ in range(5000))))
    run(cluster, work)


def test_a_call_ends_in_time_also_while_it_waits_for_its_turn():
    async def main():
        with mc.cluster.Cluster(nodes=1) as c:
            async with mc.aio.Store(c.master, timeout=1) as s:
                await s.put('k', b'value')
                os.kill(c.pid('master'), signal.SIGSTOP)
                try:
                    begun = time.monotonic()
                    done = await asyncio.gather(*(s.exists('k') for _ in range(60)),
                                                return_exceptions=True)
                    assert time.monotonic() - begun < 15  # it was 30
                    assert all(isinstance(e, (mc.Timeout, mc.Unavailable)) for e in done), done
                finally:
                    os.kill(c.pid('master'), signal.SIGCONT)
    asyncio.run(asyncio.wait_for(main(), 120))


def test_closing_the_store_beneath_ends_what_waits(cluster):
    async def main():
        s = mc.aio.Store(cluster.master)
        waits = [asyncio.ensure_future(s.get_into('never', bytearray(1), wait=3600)) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.to_thread(s.sync.close)
        done = await asyncio.gather(*waits, return_exceptions=True)
        assert all(isinstance(e, mc.Unavailable) for e in done), done
        with pytest.raises(mc.Invalid):
            await s.exists('a')
        await s.close()
    asyncio.run(asyncio.wait_for(main(), 120))


def test_closing_ends_what_waits(cluster):
    async def main():
        s = mc.aio.Store(cluster.master)
        waits = [asyncio.ensure_future(s.get_into('never', bytearray(1), wait=1)) for _ in range(9)]
        await asyncio.sleep(0)
        await s.close()
        await s.close()
        done = await asyncio.gather(*waits, return_exceptions=True)
        assert all(isinstance(e, mc.McError) for e in done), done
        with pytest.raises(mc.Invalid):
            await s.put('a', b'b')
    asyncio.run(asyncio.wait_for(main(), 120))


def test_nobody_waits_for_ever_when_closing_is_cancelled(cluster):
    async def main():
        s = mc.aio.Store(cluster.master)
        waits = [asyncio.ensure_future(s.get_into('never', bytearray(1), wait=2)) for _ in range(2)]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(s.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        while not s._queue._handle.closed:
            await asyncio.sleep(0)
        waits[0].cancel()
        await asyncio.wait(waits, timeout=60)
        assert waits[0].cancelled() and isinstance(waits[1].exception(), mc.Unavailable)
        await s.close()
    asyncio.run(asyncio.wait_for(main(), 120))


def test_no_call_begins_while_it_closes(cluster):
    async def main():
        s, go_on = mc.aio.Store(cluster.master), threading.Event()
        executor = concurrent.futures.ThreadPoolExecutor(1)
        asyncio.get_running_loop().set_default_executor(executor)
        executor.submit(go_on.wait)
        closing = asyncio.ensure_future(s.close())
        await asyncio.sleep(0)
        late = asyncio.ensure_future(s.exists('late'))
        await asyncio.wait([late], timeout=30)
        go_on.set()
        assert late.done() and isinstance(late.exception(), mc.Invalid)
        await closing
    asyncio.run(asyncio.wait_for(main(), 120))


def test_more_keys_than_a_queue_takes(cluster):
    async def work(s):
        await s.put('here', b'value')
        assert await s.get_many([*(f'absent{n}' for n in range(5000)), 'here']) == {'here': b'value'}
    run(cluster, work)


def test_a_larger_value_in_its_place_is_got(cluster, monkeypatch):
    async def work(s):
        await s.put('larger', b'bytes')
        sizes, size = iter([1, 2]), s.size

        async def late(key, **_):
            return next(sizes, None) or await size(key)
        monkeypatch.setattr(s, 'size', late)
        assert await s.get('larger') == b'bytes'
    run(cluster, work)


def test_a_store_belongs_to_one_loop(cluster):
    s = mc.aio.Store(cluster.master)
    asyncio.run(s.put('one loop', b'x'))
    with pytest.raises(RuntimeError, match='another loop'):
        asyncio.run(s.put('another', b'x'))
    asyncio.run(s.close())
    asyncio.run(s.close())


def test_a_timeout_and_progress_of_one_call(cluster):
    async def work(s):
        value, told = bytes(3_000_000), []

        def tell(done, total):
            told.append((done, total, asyncio.get_running_loop() is loop))
        loop = asyncio.get_running_loop()
        assert await s.put('told', value, timeout=60, progress=tell) is mc.Put.STORED
        assert told[-1] == (len(value), len(value), True)
        del told[:]
        assert await s.get('told', timeout=60, progress=tell) == value
        assert told[-1] == (len(value), len(value), True)
        with pytest.raises(ValueError, match='above 0'):
            await s.size('told', timeout=0)

        def stop(done, total):
            raise RuntimeError('enough')
        for call in (s.put('other', value, progress=stop), s.get('told', progress=stop)):
            with pytest.raises(RuntimeError, match='enough'):
                await call
        assert await s.get('told', timeout=60) == value
        await s.remove_many(['told', 'other'], force=True)
    run(cluster, work)


def test_each_call_ends_within_its_own_timeout():
    async def main():
        with mc.cluster.Cluster(nodes=1) as c:
            async with mc.aio.Store(c.master, timeout=600) as s:
                await s.put('k', b'value')
                os.kill(c.pid('master'), signal.SIGSTOP)
                try:
                    for call in (s.put('l', b'v', timeout=0.05), s.get('k', timeout=0.05),
                                 s.exists('k', timeout=0.05), s.list('k', timeout=0.05),
                                 s.remove('k', timeout=0.05), s.match_prefix(['k'], timeout=0.05)):
                        with pytest.raises((mc.Timeout, mc.Unavailable)):
                            await call
                finally:
                    os.kill(c.pid('master'), signal.SIGCONT)
                assert await s.get('k') == b'value'
    asyncio.run(asyncio.wait_for(main(), 120))
