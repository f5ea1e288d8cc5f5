"""The processes of one side: they run while it is their turn and stand still in between, so that no
thread of a peer that polls takes CPU from another's turn."""
import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
SECONDS = 180.0  # for one answer


class Failed(Exception):
    """A worker could not do it; the text is the peer's."""


class Worker:
    """A process that answers calls, a line each: worker.py, or a program that speaks as it does."""

    def __init__(self, command, log, environment=None):
        self.name = pathlib.Path(command[-1]).name
        self._log = open(log, 'ab')
        self.child = subprocess.Popen([str(word) for word in command], bufsize=0,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=self._log, start_new_session=True,
                                      env={**os.environ, **(environment or {})})
        self._rest = b''

    def send(self, method, **arguments):
        try:
            self.child.stdin.write(json.dumps([method, arguments]).encode() + b'\n')
        except BrokenPipeError:
            pass  # `take` says it

    def take(self):
        """What the last call returned."""
        deadline = time.monotonic() + SECONDS
        while b'\n' not in self._rest:
            ready, _, _ = select.select([self.child.stdout], [], [], deadline - time.monotonic()) \
                if time.monotonic() < deadline else ([], [], [])
            more = os.read(self.child.stdout.fileno(), 65536) if ready else b''
            if not more:
                raise Failed(f'{self.name} {"ended" if ready else "does not answer"}: see {self._log.name}')
            self._rest += more
        line, self._rest = self._rest.split(b'\n', 1)
        answer = json.loads(line)
        if 'failed' in answer:
            raise Failed(answer['failed'])
        return answer['is']

    def call(self, method, **arguments):
        self.send(method, **arguments)
        return self.take()

    def close(self):
        self.child.kill()
        self.child.wait()
        for each in (self.child.stdin, self.child.stdout, self._log):
            each.close()


class Side:
    """A name with a version, and its processes: workers, and servers by process id."""

    def __init__(self, name, version, folder):
        self.name, self.version, self.folder = name, version, pathlib.Path(folder)
        self._workers, self._servers, self._closers = [], [], []

    def __str__(self):
        return f'{self.name} {self.version}'

    def worker(self, python, module, environment=None):
        """One more worker.py, in an environment of its own."""
        return self.program(python, HERE / 'worker.py', module, environment=environment)

    def program(self, *command, environment=None):
        """One more process that speaks as worker.py does."""
        made = Worker(command, self.folder / f'{self.name}.log', environment)
        self._workers.append(made)
        return made

    def server(self, *command):
        """A program that runs beside the workers."""
        with open(self.folder / f'{self.name}.log', 'ab') as log:
            child = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log,
                                     stderr=log, start_new_session=True)
        self._closers.append(lambda: (child.kill(), child.wait()))
        self._servers.append(child.pid)
        return child

    def adopt(self, pid, close=None):
        """A process that another started."""
        self._servers.append(pid)
        if close is not None:
            self._closers.append(close)

    def _signal(self, what):
        for pid in self._servers + [w.child.pid for w in self._workers]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, what)

    def pause(self):
        """Nothing of it runs any more."""
        self._signal(signal.SIGSTOP)
        for pid in self._servers + [w.child.pid for w in self._workers]:
            _until_stopped(pid)

    def resume(self):
        self._signal(signal.SIGCONT)

    @contextlib.contextmanager
    def turn(self):
        self.resume()
        try:
            yield self
        finally:
            self.pause()

    def close(self):
        for worker in self._workers:
            worker.close()
        for close in reversed(self._closers):
            close()
        self._workers, self._servers, self._closers = [], [], []


def _until_stopped(pid):
    """A signal to stop reaches every thread a moment after it was sent."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            states = {_state(t) for t in pathlib.Path(f'/proc/{pid}/task').iterdir()}
        except OSError:
            return
        if states <= set('TtZX'):
            return
    print(f'peers: process {pid} does not stop', file=sys.stderr)


def _state(task):
    try:
        return (task / 'stat').read_text().rpartition(')')[2].split()[0]
    except OSError:
        return 'X'
