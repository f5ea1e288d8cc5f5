"""mc.Store against a master and two nodes: every method, and the error of each that can fail."""
import ctypes
import subprocess
import sys
import threading

import mc
import pytest


def pattern(size, seed):
    return bytes((i * 31 + seed) % 251 for i in range(size))


def test_one_value(store):
    store.put('one', b'bytes')
    assert store.get('one') == b'bytes' and store.size('one') == 5
    assert 'one' in store and store.exists('one') and not store.exists('none')
    into = bytearray(b'.' * 8)
    assert store.get_into('one', into) == 5 and into == b'bytes...'
    store.put('one', b'other')  # a key that is there stays as it is
    assert store.get('one') == b'bytes'
    store.remove('one', force=True)
    assert not store.exists('one')


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


def test_a_value_in_parts(store):
    store.put('parts', [b'ab', bytearray(b'cd'), b''])
    assert store.get('parts') == b'abcd'
    left, right = bytearray(3), bytearray(3)
    assert store.get_into('parts', [left, right]) == 4
    assert (left, right) == (b'abc', b'd\0\0')


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


def test_the_interpreter_ends_with_a_store_open(cluster):
    program = ('import mc, threading, sys\n'
               's = mc.Store(sys.argv[1])\n'
               's.put("left", b"open")\n'
               'print(s.get("left"), flush=True)\n'
               'begun = threading.Event()\n'
               'def waits():\n'
               '    begun.set()\n'
               '    s.get_many_into({"never": bytearray(1)}, wait=60)\n'
               'threading.Thread(target=waits, daemon=True).start()\n'
               'begun.wait()\n')
    out = subprocess.run([sys.executable, '-c', program, cluster.master], capture_output=True,
                         text=True, timeout=40)
    assert (out.returncode, out.stdout) == (0, "b'open'\n"), out
