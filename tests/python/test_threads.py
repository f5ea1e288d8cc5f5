"""Calls of a process that may have no further thread fail by name, and work once it may."""
import os
import subprocess
import sys

PROGRAM = '''
import os, resource, sys
import mc

# Root may have any number of threads.
if os.geteuid() == 0:
    os.setuid(54321)
_, hard = resource.getrlimit(resource.RLIMIT_NPROC)
with mc.Store(sys.argv[1], timeout=5, transports='tcp') as s:
    resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
    for call in (lambda: s.put('k', b'v' * 100_000), lambda: s.get('there')):
        try:
            call()
            sys.exit('a call went through')
        except mc.McError as e:
            assert 'no further thread' in str(e), e
    resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))
    s.put('k', b'v' * 100_000)
    assert s.get('k') == b'v' * 100_000 and s.get('there') == b'there' * 1000
'''


def test_without_a_further_thread(cluster, store):
    store.put('there', b'there' * 1000)
    done = subprocess.run([sys.executable, '-c', PROGRAM, cluster.master], capture_output=True, text=True,
                          timeout=120, env=os.environ)
    assert done.returncode == 0, done.stderr
