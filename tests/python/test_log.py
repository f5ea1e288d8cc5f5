"""mc.use_logging: the library's log in that of Python, and on stderr without it."""
import os
import subprocess
import sys

# A node that no master answers says so, at the level of a warning.
PROGRAM = '''
import logging, os, sys, threading
import mc

class Keep(logging.Handler):
    def emit(self, record):
        print(record.name, record.levelname, record.getMessage(), flush=True)
        heard.set()

heard = threading.Event()
logging.getLogger('mc').addHandler(Keep())
logging.getLogger('mc').propagate = False

def warned():
    with mc.Store('127.0.0.1:1') as s, s.offer(1 << 20):
        return heard.wait(30)

def on_stderr():
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    with mc.Store('127.0.0.1:1') as s, s.offer(1 << 20):
        line = os.read(reader, 65536).decode()
    assert 'store: ' in line and '127.0.0.1:1' in line and not heard.is_set(), line
'''


def run(what):
    done = subprocess.run([sys.executable, '-c', PROGRAM + what], capture_output=True, text=True,
                          timeout=120, env=os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_lines_go_to_the_logger_of_their_area():
    out, err = run('mc.use_logging()\nmc.use_logging()\nassert warned()\n')
    assert out.startswith('mc.store WARNING ') and '127.0.0.1:1' in out
    assert err == ''


def test_they_go_to_stderr_without_it_and_once_it_was_taken_back():
    out, _ = run('mc.use_logging()\nmc.use_logging(False)\non_stderr()\n')
    assert out == ''


def test_a_child_of_a_fork_writes_to_stderr_again():
    out, _ = run('''
mc.use_logging()
child = os.fork()
if child == 0:
    on_stderr()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
mc.use_logging(False)
''')
    assert out == ''
