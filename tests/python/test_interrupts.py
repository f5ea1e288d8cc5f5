"""Exceptions of signal handlers, such as KeyboardInterrupt, that come in the middle of a call."""
import signal
import sys
import time

import mc
import mc._calls
import mc._limits
import mc.engine
import pytest

# What is raised in a function of a weakref is printed.
pytestmark = pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')


class Ping(Exception):
    """What the handler raises."""


def interrupted(call):
    """Makes the call again and again; each time it is interrupted one step later, where CPython
    looks for signals: when a function of Python begins, and when one of C has returned. Returns
    the exceptions, which keep the frames that they met."""
    kept = []
    for at in range(1, 2000):
        left = [at]

        def step(frame, event, argument):
            if event in ('call', 'c_return'):
                left[0] -= 1
                if left[0] == 0:
                    raise Ping

        sys.setprofile(step)
        try:
            call()
            sys.setprofile(None)
            if left[0] > 0:
                return kept
        except Ping as e:
            kept.append(e)
        finally:
            sys.setprofile(None)
    pytest.fail('it does not end')


def test_an_interrupted_call_leaves_nothing_in_use(cluster):
    store = mc.Store(cluster.master)
    store.put('a', b'here')
    with mc.Engine('stop-there') as there, there.allocate(4096):
        engine = mc.Engine('stop-here')
        peer, memory = engine.open(there.address, timeout=20), store.allocate(4)
        into, kept = engine.allocate(4096), []
        layout = store.layout([mc.Region(memory, 4)], 1)
        for call in (lambda: store.get('a'), lambda: store.exists('a'),
                     lambda: store.exists_many(['a', 'b']), lambda: store.put('a', b'other'),
                     lambda: store.get_into('a', memory), lambda: store.get('a', timeout=20),
                     lambda: store.get_many_into({'a': memory}), lambda: peer.read(into),
                     lambda: store.put_blocks(layout, 'a@', bytes(32), [0])):
            kept += interrupted(call)
        # Freed here: a child that an interrupted step left behind would be freed by it.
        assert kept and layout._handle.close(20) and layout._handle._freed
        assert memory._handle.close(20) and memory._handle._freed
        assert engine._handle.close(20) and engine._handle._freed
        assert store._handle.close(20) and store._handle._freed


def test_an_interrupted_queue_loses_no_call(store):
    queue, begun, memory = store.queue(), set(), store.allocate(4)

    def step():
        begun.add(queue.get_many_into({'a': memory}).tag)
        while queue.flights():
            queue.wait(20)
            queue.take()

    kept = interrupted(step)
    while queue.flights():
        assert queue.wait(20)
        queue.take()
    assert kept and begun and memory._handle.close(20) and memory._handle._freed
    assert queue._handle.close(20) and queue._handle._freed


def test_an_interrupted_batch_is_submitted_once():
    with mc.Engine('once-a') as a, mc.Engine('once-b') as b, b.allocate(4096):
        peer, into = a.open(b.address, timeout=20), bytearray(4096)
        batches = [a.batch() for _ in range(64)]
        for batch in batches:
            batch.read(into, peer)
        waiting = iter(batches)
        interrupted(lambda: next(waiting).submit())
        for batch in batches:
            batch.wait(timeout=20)
            assert batch.status(0).state is mc.State.COMPLETED
            with pytest.raises(mc.NotFound):
                batch.status(1)


def test_a_call_that_the_library_has_is_kept_whatever_is_raised(store, monkeypatch):
    begin = mc._calls.PutKeys.begin

    def before(call, *arguments):
        raise KeyboardInterrupt

    def behind(call, *arguments):
        begin(call, *arguments)
        raise KeyboardInterrupt

    with store.queue() as queue:
        monkeypatch.setattr(mc._calls.PutKeys, 'begin', before)
        with pytest.raises(KeyboardInterrupt):
            queue.put_many({'raised': bytearray(b'bytes')})
        assert len(queue) == 0
        monkeypatch.setattr(mc._calls.PutKeys, 'begin', behind)
        value = bytearray(b'bytes' * 100)
        with pytest.raises(KeyboardInterrupt):
            queue.put_many({'raised': value}, context='mine')
        flight, = queue.flights()
        with pytest.raises(BufferError):
            value.append(0)
        assert queue.wait(20) and queue.take() == [flight] and flight.context == 'mine'
        value.append(0)
        assert store.get('raised') == b'bytes' * 100


def test_limits_of_an_interrupted_call_are_of_no_other(store, monkeypatch):
    store.put('limits', b'value')
    real, given = mc._limits.lib, []

    class Raises:
        """As a signal that is seen when the library's function returns."""

        def __getattr__(self, name):
            return getattr(real, name)

        def mc_call_with(self, options):
            real.mc_call_with(options)
            given.append(options)
            if len(given) == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(mc._limits, 'lib', Raises())
    with pytest.raises(KeyboardInterrupt):
        store.get('limits', timeout=0.001, progress=lambda done, total: None)
    assert given[-1] is not None
    assert store.get('limits') == b'value' and given[-1] is None and len(given) == 2
    assert store.get('limits', progress=lambda done, total: store.exists('limits')) == b'value'
    assert [options is None for options in given[2:]] == [False, True]


def test_an_interrupt_loses_no_notice(monkeypatch):
    with mc.Engine('note-a') as a, mc.Engine('note-b') as b:
        peer, text, met = b.open(a.address, timeout=20), mc.engine.string_at, []
        for name in ('n1', 'n2'):
            peer.notify(name, name.encode(), timeout=20)

        def string_at(*arguments):
            if not met:
                met.append(True)
                raise KeyboardInterrupt
            return text(*arguments)

        monkeypatch.setattr(mc.engine, 'string_at', string_at)
        with pytest.raises(KeyboardInterrupt):
            a.notices()
        assert a.notices(most=1) == [('note-b', 'n1', b'n1')]
        assert a.notices() == [('note-b', 'n2', b'n2')] and a.notices() == []


def test_a_signal_ends_a_wait(store):
    def ring(*_):
        raise Ping

    memory, hashed = bytearray(10), bytes(32)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        with store.queue() as queue, store.layout([mc.Region(memory, 10)], 1) as layout:
            for wait in (lambda: queue.wait(3600),
                         lambda: store.get_many_into({'never': memory}, wait=3600, timeout=3600),
                         lambda: store.get_blocks(layout, 'never@', hashed, [0], wait=3600)):
                begin = time.monotonic()
                signal.setitimer(signal.ITIMER_REAL, 0.01)
                with pytest.raises(Ping):
                    wait()
                assert time.monotonic() - begin < 60
        memory.append(0)  # nothing uses it any more
        store.put('long', b'value')
        into = bytearray(5)
        done = store.get_many_into({'long': into, 'never': memory}, wait=0.3)
        assert [r.code for r in done.values()] == [0, mc.Code.NOT_FOUND] and into == b'value'
    finally:
        signal.signal(signal.SIGALRM, before)
