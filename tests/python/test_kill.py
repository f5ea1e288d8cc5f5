"""Master and nodes are killed under eight threads: every call ends, and values come back whole."""
import threading
import time

import mc
import mc.cluster

TIMEOUT = 1.0
SLACK = 10.0  # of a busy machine; a call that hangs does so for ever


def pattern(seed):
    return bytes([seed % 251]) * 20_000


def test_every_call_ends():
    with mc.cluster.Cluster(nodes=2, size='32MiB', client_ttl='1500ms', suspect_after='1s') as c, \
            mc.Store(c.master, timeout=TIMEOUT) as s:
        stop, longest, wrong, calls = threading.Event(), [0.0] * 8, [], [0] * 8

        def works(number):
            i = 0
            while not stop.is_set():
                i += 1
                into = bytearray(20_000)
                for call, value in ((s.put, pattern(i)), (s.get_into, into)):
                    begun = time.monotonic()
                    try:
                        call(f'{number}-{i}', value)
                        if call == s.get_into and into != pattern(i):
                            wrong.append(i)
                    except mc.McError:
                        pass
                    calls[number] += 1
                    longest[number] = max(longest[number], time.monotonic() - begun)

        def pass_some(least):
            start = sum(calls)
            deadline = time.monotonic() + 60
            while sum(calls) < start + least:
                assert time.monotonic() < deadline, 'no call ends'
                time.sleep(0.02)

        threads = [threading.Thread(target=works, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        pass_some(80)
        c.kill('s0')
        pass_some(40)
        c.kill('master')
        pass_some(8)
        c.start_master()
        pass_some(40)
        stop.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert wrong == []
        assert max(longest) < TIMEOUT + SLACK
