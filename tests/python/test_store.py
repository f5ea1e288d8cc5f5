"""mc.Store against a master and two nodes: every method, and the error of each that can fail."""
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import mc
import pytest


def pattern(size, seed):
    return bytes((i * 31 + seed) % 251 for i in range(size))


def test_one_value(store):
    assert store.put('one', b'bytes') is mc.Put.STORED
    assert store.get('one') == b'bytes' and store.size('one') == 5
    assert 'one' in store and store.exists('one') and not store.exists('none')
    into = bytearray(b'.' * 8)
    assert store.get_into('one', into) == 5 and into == b'bytes...'
    assert store.put('one', b'other') is mc.Put.EXISTED  # what is there is kept
    assert store.get('one') == b'bytes'
    store.remove('one', force=True)
    assert not store.exists('one')


def test_what_means_nothing_is_refused_before_anything_is_done(cluster, store):
    with pytest.raises(TypeError, match='a key is text or bytes'):
        store.put(bytearray(b'refused'), b'value')
    assert not store.exists('refused')
    for call in (lambda: store.get('a', timeout=0), lambda: store.get_many(['a'], timeout=-1),
                 lambda: store.get_into('a', bytearray(1), timeout=0)):
        with pytest.raises(ValueError, match='above 0'):
            call()
    with pytest.raises(mc.NotFound):
        store.get('refused', timeout=float('inf'))
    for options in (dict(timeout=0), dict(timeout=float('inf'))):
        with pytest.raises(mc.Invalid, match='timeout'):
            mc.Store(cluster.master, **options)
    with pytest.raises(mc.Invalid, match='ttl_ms'):
        store.put('refused', b'v', mc.PutOptions(ttl=1))
    with pytest.raises(ValueError, match='threads -1'):
        store.queue(-1)
    with pytest.raises(ValueError, match='depth -1'):
        store.queue(depth=-1)
    with pytest.raises(ValueError, match='-1 bytes'):
        store.allocate(-1)
    for hashes, size in ((bytes(33), 32), (bytes(32), 0)):
        with pytest.raises(ValueError, match='hashes of'):
            store.match_blocks(['none@'], hashes, size)


def test_what_one_value_raises(store):
    for call in (store.get, store.size, store.remove):
        with pytest.raises(KeyError) as raised:
            call('absent')
        assert isinstance(raised.value, mc.NotFound) and 'absent' in str(raised.value)
    with pytest.raises(mc.NotFound):
        store.get_into('absent', bytearray(1))
    store.put('five', b'12345')
    with pytest.raises(mc.NoSpace):
        store.get_into('five', bytearray(4))
    with pytest.raises(BufferError):
        store.get_into('five', b'12345')
    for key in ('', 'k' * 1025, 'nul\0'):
        with pytest.raises(mc.Invalid):
            store.put(key, b'x')
    assert store.get('five') == b'12345'  # and leases it
    with pytest.raises(mc.Busy):
        store.remove('five')
    with pytest.raises(mc.NoSpace):
        store.put('large', bytearray(80 << 20))


def test_empty_and_large_values_and_odd_keys(store):
    for key, value in (('ü', b'u'), (b'\xff\x01', b'b'), ('large', pattern(5_000_000, 3))):
        store.put(key, value)
        assert store.get(key) == value


def test_many_values(store):
    k, v = bytearray(pattern(3000, 1)), memoryview(pattern(4000, 2))
    done = store.put_many({'m1': b'first', 'm2': [k, v], 'nul\0': b'x'})
    assert [(key, r.code, r.ok) for key, r in done.items()] == [
        ('m1', mc.Code.OK, True), ('m2', mc.Code.OK, True), ('nul\0', mc.Code.INVALID, False)]
    assert done['m2'].bytes == 7000
    assert store.get_many(['m1', 'm2', 'no']) == {'m1': b'first', 'm2': bytes(k) + bytes(v)}
    parts = [bytearray(1000), bytearray(6500)]
    got = store.get_many_into({'m1': bytearray(3), 'm2': parts, 'no': bytearray(3)})
    assert [r.code for r in got.values()] == [mc.Code.NO_SPACE, mc.Code.OK, mc.Code.NOT_FOUND]
    assert got['m2'].bytes == 7000 and b''.join(parts)[:7000] == bytes(k) + bytes(v)
    assert store.exists_many(['m1', 'no', 'm2']) == [True, False, True]
    assert store.match_prefix(['m1', 'm2', 'no', 'm1']) == 2
    codes = store.remove_many(['m1', 'no'], force=True)
    assert [r.code for r in codes.values()] == [mc.Code.OK, mc.Code.NOT_FOUND]
    assert store.put_many({}) == store.get_many_into({}) == store.remove_many([]) == {}
    assert store.exists_many([]) == [] and store.match_prefix([]) == 0


def test_options_of_a_put(store):
    once = mc.PutOptions(replicas=2, pin='hard', group='g')
    assert store.put('kept', b'v', once) is mc.Put.STORED
    assert len(store.locate('kept')) == 2
    with pytest.raises(mc.Busy):
        store.remove('kept')
    ephemeral = mc.PutOptions(cls='ephemeral')
    assert store.put('soon gone', b'v', ephemeral) is mc.Put.NOT_ADMITTED
    done = store.put_many({'kept': b'w', 'new': b'ww'}, mc.PutOptions(prefer='s1'))
    assert [(r.outcome, r.bytes) for r in done.values()] == [(mc.Put.EXISTED, 0), (mc.Put.STORED, 2)]
    assert [p.node for p in store.locate('new')] == ['s1']
    assert store.put('new', b'replaced', mc.PutOptions(replace=True)) is mc.Put.STORED
    assert store.get('new') == b'replaced'
    store.remove_many(['kept', 'new'], force=True)


def test_what_is_stored(store):
    store.put_many({f'l/{n:04}': b'x' * n for n in range(1, 1201)})
    store.put(b'l/\xff', b'odd')
    found = store.list('l/')
    assert [(key, size) for key, size in found[:-1]] == [(f'l/{n:04}', n) for n in range(1, 1201)]
    assert store.get(found[-1].key) == b'odd'
    assert store.list('l/', limit=3) == found[:3] and store.list('l/', limit=0) == []
    assert store.list('nothing/') == []
    store.get('l/0001')
    assert [(p.tier, p.bytes) for p in store.locate('l/0007')] == [('memory', 7)]
    with pytest.raises(mc.NotFound):
        store.locate('absent')
    with pytest.raises(mc.Busy) as raised:
        store.remove_prefix('l/000')
    assert raised.value.removed <= 8
    left = len(store.list('l/'))
    assert store.remove_prefix('l/', force=True) == left and store.list('l/') == []
    health = store.health(timeout=20)
    assert health.nodes == 2 and health.free_bytes > 1 << 20
    assert store.prefetch(['a', 'b']) == 0
    assert {'queue', 'blocks'} <= mc.features()


def test_an_interrupt_ends_a_list(store, monkeypatch):
    store.put_many({'i1': b'1', 'i2': b'2'})
    monkeypatch.setattr(mc.store, 'decode', lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store.list('i')


def test_memory_of_this_process_in_the_pool(cluster):
    with mc.Store(cluster.master) as s:
        with s.offer(4 << 20):
            deadline = time.monotonic() + 60
            while s.health(timeout=20).nodes < 3:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            s.put('mine', b'here', mc.PutOptions(prefer_local=True))
            assert s.get('mine') == b'here'
    with mc.Store(cluster.master) as s, pytest.raises(mc.McError):
        s.offer(0)


@pytest.mark.parametrize('transports', ['shm,tcp', 'tcp'])
def test_a_buffer_of_the_caller_in_the_pool(transports):
    own = bytearray(b'x') * (8 << 20)
    with mc.cluster.Cluster(nodes=0) as c, mc.Store(c.master, transports=transports) as s:
        with pytest.raises(mc.McError):
            s.offer()
        with pytest.raises(mc.Denied):
            s.offer(memory=s.engine.register(own, writable=False))
        offered = s.offer(memory=s.engine.register(own))
        deadline = time.monotonic() + 60
        while not s.health(timeout=20).nodes:
            assert time.monotonic() < deadline
        value = bytes(range(256)) * 4096
        with_other = ('import sys, mc; s = mc.Store(sys.argv[1], transports=sys.argv[2]); '
                      's.put("other", bytes(range(256)) * 4096); '
                      'assert s.get("mine") == bytes(range(256)) * 4096')
        s.put('mine', value)
        out = subprocess.run([sys.executable, '-c', with_other, c.master, transports], timeout=60,
                             capture_output=True, text=True)
        assert out.returncode == 0, out.stderr
        assert s.get('other') == value and own.count(value[:4096]) == 2 * 256
        offered.close()


def test_a_value_in_parts(store):
    store.put('parts', [b'ab', bytearray(b'cd'), b''])
    assert store.get('parts') == b'abcd'
    left, right = bytearray(3), bytearray(3)
    assert store.get_into('parts', [left, right]) == 4
    assert (left, right) == (b'abc', b'd\0\0')


def test_parts_of_values(store):
    store.put('whole', bytes(range(100)))
    first, rows, into = bytearray(3), bytearray(b'.' * 8), bytearray(2)
    done = store.get_ranges({'whole': [mc.Piece(first, 10), mc.Piece(rows, 20, 2, 3, 3, 10)],
                             'none': [mc.Piece(into)]})
    assert done['whole'] == (mc.Code.OK, 9, None) and done['none'].code is mc.Code.NOT_FOUND
    assert first == bytes([10, 11, 12])
    assert rows == bytes([20, 21]) + b'.' + bytes([30, 31]) + b'.' + bytes([40, 41])
    assert store.get_ranges({'whole': [mc.Piece(into, 99)]})['whole'].code is mc.Code.INVALID
    with pytest.raises(ValueError):
        store.get_ranges({'whole': [mc.Piece(into, 0, 3)]})
    into.append(0)


def test_a_get_that_waits(cluster, store):
    with mc.Store(cluster.master) as other:
        into, thread = bytearray(4), None

        def puts():
            other.put('awaited', b'here')

        thread = threading.Thread(target=puts)
        thread.start()
        done = store.get_many_into({'awaited': into}, wait=20)
        thread.join()
    assert done['awaited'].ok and into == b'here'


def test_registered_and_allocated_memory(store):
    data = bytearray(pattern(100_000, 9))
    with store.register(data) as memory, store.allocate(100_000) as own:
        assert memory.nbytes == own.nbytes == 100_000
        with pytest.raises(BufferError):  # referenced, so it keeps its place
            data.append(0)
        store.put('from', memory[:50_000])
        assert store.get_into('from', own[1000:]) == 50_000
        assert own.view[1000:51_000] == data[:50_000]
        ctypes.memset(own.address, 7, 3)
        store.put('own', own[:3])
        assert store.get('own') == b'\7\7\7'
    data.append(0)
    with pytest.raises(BufferError):
        own[:1]


def test_a_store_that_is_closed(cluster):
    s = mc.Store(cluster.master)
    memory = s.register(bytearray(4096))
    s.put('closed', b'x')
    s.close()
    s.close()
    with pytest.raises(mc.Invalid, match='is closed'):
        s.get('closed')
    with pytest.raises(mc.Invalid, match='is closed'):
        s.register(bytearray(4096))
    memory.close()


def test_close_waits_for_other_threads(cluster):
    s = mc.Store(cluster.master)
    begun, results = threading.Event(), []

    def waits():
        begun.set()
        results.append(s.get_many_into({'never': bytearray(1)}, wait=1))

    thread = threading.Thread(target=waits)
    thread.start()
    begun.wait()
    s.close()
    thread.join()
    assert s._handle._freed
    assert not results or results[0]['never'].code is mc.Code.NOT_FOUND


def test_many_threads(store):
    failures = []

    def works(number):
        for i in range(30):
            key, value = f't{number}-{i}', pattern(2000 + i, number)
            store.put(key, value)
            if store.get(key) != value:
                failures.append(key)

    threads = [threading.Thread(target=works, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_references_come_back(store):
    value, into, parts = bytearray(b'v' * 100), bytearray(100), [bytearray(10), bytearray(90)]
    before = list(map(sys.getrefcount, (value, into, *parts)))
    for i in range(50):
        store.put(f'r{i}', value)
        store.put_many({f'q{i}': parts})
        store.get_into(f'r{i}', into)
        store.get_many_into({f'q{i}': parts, 'none': into})
    assert list(map(sys.getrefcount, (value, into, *parts))) == before
    value.append(1)


def resident():
    """KiB of this process in memory."""
    with open('/proc/self/statm') as file:
        return int(file.read().split()[1]) * 4


def test_calls_leave_nothing_behind(store):
    value, into = bytearray(1000), bytearray(1000)

    def calls(count):
        for i in range(count):
            store.put('again', value)
            store.get_into('again', into)
            store.exists_many(['again', 'none'])
            with pytest.raises(mc.NotFound):
                store.get('none')

    calls(500)
    before = resident()
    calls(2500)
    assert resident() < before + 8192


def test_a_fork_and_a_spawn(cluster, store):
    memory = store.allocate(8)
    child = os.fork()
    if child == 0:
        try:
            for use in (memory.span, memory[:].span, lambda: memory[:4]):
                with pytest.raises(mc.Unsupported):
                    use()
            store.put('forked', b'x')
        except mc.Unsupported:
            cluster.close()  # as at the end of a child's interpreter: it is the parent's
            store.close()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    store.put('parent', b'x')
    program = 'import mc, sys; s = mc.Store(sys.argv[1]); s.put("spawned", s.get("parent"))'
    assert subprocess.run([sys.executable, '-c', program, cluster.master], timeout=60).returncode == 0
    assert store.get('spawned') == b'x'


@pytest.mark.parametrize('waits', ['s.get_many_into', 'q.get_many_into'])
def test_the_interpreter_ends_with_a_store_open(cluster, waits):
    program = ('import mc, threading, sys\n'
               's = mc.Store(sys.argv[1])\n'
               'q = s.queue()\n'
               's.put("left", b"open")\n'
               'print(s.get("left"), flush=True)\n'
               'begun = threading.Event()\n'
               'def waits():\n'
               '    begun.set()\n'
               f'    {waits}({{"never": bytearray(1)}}, wait=60)\n'
               'threading.Thread(target=waits, daemon=True).start()\n'
               'begun.wait()\n')
    out = subprocess.run([sys.executable, '-c', program, cluster.master], capture_output=True,
                         text=True, timeout=40)
    assert (out.returncode, out.stdout) == (0, "b'open'\n"), out


def test_a_timeout_and_progress_of_one_call(store):
    value, told = pattern(3_000_000, 5), []

    def tell(done, total):
        told.append((done, total))
    assert store.put('told', value, timeout=60, progress=tell) is mc.Put.STORED
    assert told[-1] == (len(value), len(value))
    del told[:]
    assert store.get('told', timeout=60, progress=tell) == value
    assert told[-1] == (len(value), len(value)) and told == sorted(told)
    del told[:]
    into = bytearray(len(value))
    assert store.get_into('told', into, progress=tell) == len(value) and told
    assert store.get_many_into({'told': into}, progress=tell)['told'].ok
    assert store.put_many({'told too': value}, progress=tell)['told too'].ok
    for timeout in (0, -1.0, float('nan')):
        with pytest.raises(ValueError, match='above 0'):
            store.size('told', timeout=timeout)
    store.remove_many(['told', 'told too'], force=True, timeout=60)


def test_what_progress_raises_ends_the_call(store):
    def stop(done, total):
        raise KeyboardInterrupt(done)
    with pytest.raises(KeyboardInterrupt):
        store.put('raises 1', pattern(1_000_000, 6), progress=stop)
    store.put('raises 2', pattern(1_000_000, 6))
    with pytest.raises(KeyboardInterrupt):
        store.get('raises 2', progress=stop)
    assert store.get('raises 2') == pattern(1_000_000, 6)  # the next call goes as ever
    store.remove_many(['raises 1', 'raises 2'], force=True)


def test_each_call_ends_within_its_own_timeout():
    """The store's own is a minute, and the master stands still."""
    calls = [lambda s, **t: s.put('k', b'v', **t), lambda s, **t: s.get('k', **t),
             lambda s, **t: s.get_into('k', bytearray(9), **t), lambda s, **t: s.size('k', **t),
             lambda s, **t: s.exists('k', **t), lambda s, **t: s.remove('k', **t),
             lambda s, **t: s.locate('k', **t), lambda s, **t: s.exists_many(['k'], **t),
             lambda s, **t: s.get_many(['k'], **t), lambda s, **t: s.match_prefix(['k'], **t),
             lambda s, **t: s.prefetch(['k'], **t), lambda s, **t: s.list('k', **t),
             lambda s, **t: s.remove_prefix('k', **t),
             lambda s, **t: s.match_blocks(['k'], bytes(32), **t)]
    with mc.cluster.Cluster(nodes=1) as c, mc.Store(c.master, timeout=600) as s:
        s.put('k', b'value')
        os.kill(c.pid('master'), signal.SIGSTOP)
        try:
            for call in calls:
                with pytest.raises((mc.Timeout, mc.Unavailable)):
                    call(s, timeout=0.05)
            for many in (s.put_many({'l': b'v'}, timeout=0.05),
                         s.get_many_into({'k': bytearray(9)}, timeout=0.05),
                         s.get_ranges({'k': [mc.Piece(bytearray(1))]}, timeout=0.05),
                         s.remove_many(['k'], timeout=0.05)):
                assert [r.code in (mc.Code.TIMEOUT, mc.Code.UNAVAILABLE) for r in many.values()] == [True]
            with s.queue() as q:
                flight = q.put_many({'l': b'v'}, timeout=0.05)
                while not flight.done:
                    q.wait(60)
                    q.take()
                assert flight.failed == 1
        finally:
            os.kill(c.pid('master'), signal.SIGCONT)
        assert s.get('k') == b'value'


def test_texts_with_a_nul_mean_nothing_else(cluster, store):
    for options in ({'tenant': 'a\0b'}, {'name': 'c\0d'}):
        with pytest.raises(mc.Invalid, match='NUL'):
            mc.Store(cluster.master, **options)
    with pytest.raises(mc.Invalid, match='NUL'):
        mc.Store(cluster.master + '\0')
    for options in ({'group': 'g\0'}, {'tenant': '\0'}, {'prefer': 's0\0'}):
        with pytest.raises(mc.Invalid, match='NUL'):
            store.put('nul', b'x', mc.PutOptions(**options))
    assert not store.exists('nul')
