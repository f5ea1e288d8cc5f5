"""A master and store nodes on loopback, for tests and notebooks.

    with mc.cluster.Cluster(nodes=2) as c, mc.Store(c.master) as s:
        s.put('a', b'bytes')

It runs the programs mc-master and mc-store: of $MC_BIN, else of PATH. Every port is a free one, and
everything ends with the cluster. Not for production: nothing is restarted, and nothing is kept.
"""
from __future__ import annotations

import atexit
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from typing import Any, Optional

START_SECONDS = 60.0


def _program(name: str, folder: Optional[str]) -> str:
    folder = folder or os.environ.get('MC_BIN')
    found = shutil.which(name, path=folder)
    if found is None:
        raise FileNotFoundError(f'no program {name} in {folder or "PATH"}: build mc, and name its '
                                'folder in $MC_BIN')
    return found


class Cluster:
    """`nodes` store nodes of `size` each. `flags` go to mc-master, as `lease_ttl='500ms'`."""

    def __init__(self, nodes: int = 1, size: str = '64MiB', folder: Optional[str] = None,
                 **flags: Any) -> None:
        self._bin = folder
        self._dir = pathlib.Path(tempfile.mkdtemp(prefix='mc-cluster.'))
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._flags = [word for name, value in flags.items()
                       for word in ('--' + name.replace('_', '-'), str(value))]
        self.master = '127.0.0.1:0'
        self._owner = os.getpid()
        atexit.register(self.close)
        try:
            self.start_master()
            for n in range(nodes):
                self.start_node(f's{n}', size)
        except BaseException:
            self.close()
            raise

    def start_master(self) -> None:
        """Again after `kill('master')`: at the same address."""
        found = self._start('master', 'mc-master', '--listen', self.master, *self._flags)
        self.master = found['control']

    def start_node(self, name: str, size: str = '64MiB', *flags: str) -> None:
        """One more node; returns when it is mounted."""
        self._start(name, 'mc-store', 'serve', '--listen', '127.0.0.1:0', '--name', name, '--size',
                    size, '--master', self.master, '--heartbeat', '100ms', *flags)

    def _start(self, name: str, program: str, *words: str) -> dict[str, Any]:
        announced, log = self._dir / f'{name}.json', self._dir / f'{name}.log'
        announced.unlink(missing_ok=True)
        command = [_program(program, self._bin), *words, '--http', '127.0.0.1:0', '--announce',
                   str(announced)]
        with open(log, 'ab') as out:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self._running[name] = child
        deadline = time.monotonic() + START_SECONDS
        while not announced.exists() or not announced.stat().st_size:
            if child.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f'{name} did not start: {self.log(name)[-2000:]}')
            time.sleep(0.02)
        found: dict[str, Any] = json.loads(announced.read_text())
        return found

    def log(self, name: str) -> str:
        """What a process has printed."""
        return (self._dir / f'{name}.log').read_text(errors='replace')

    def pid(self, name: str) -> int:
        """The process of 'master', 's0', 's1', ..."""
        return self._running[name].pid

    def kill(self, name: str) -> None:
        """Ends a process at once (SIGKILL)."""
        child = self._running.pop(name)
        child.kill()
        child.wait()

    def close(self) -> None:
        """Ends all of it. Nothing in a child of the process that started it."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        for name in list(self._running):
            self.kill(name)
        shutil.rmtree(self._dir, ignore_errors=True)

    def __enter__(self) -> 'Cluster':
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
