#!/usr/bin/env python3
"""mc beside the real peers, in one run: transfers beside Mooncake's engine and NIXL, the store beside
Mooncake's, a model beside llama.cpp. Every side has its own processes, which stand still between its
turns; bytes are compared; a line a case. scripts/setup --peers installs the peers. bench/run peers."""
import argparse
import os
import pathlib
import re
import signal
import sys
import tempfile

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'lib/python'))
BUILD = pathlib.Path(os.environ.get('MC_BIN', ROOT / 'build/release')).resolve()
os.environ.update(MC_BIN=str(BUILD), MC_LIBRARY=str(BUILD / 'libmc.so'))

import environments  # noqa: E402
import local_cpu  # noqa: E402
import models  # noqa: E402
import stores  # noqa: E402
import transfers  # noqa: E402
import turns  # noqa: E402
from side import Failed  # noqa: E402

SECTIONS = {'transfers': transfers.bench, 'store': stores.bench, 'local-cpu': local_cpu.bench, 'model': models.bench}
SKIPPED = 77


class Run:
    """What the sections are given."""

    def __init__(self, given, folder):
        self.quick, self.folder, self.build = given.quick, pathlib.Path(folder), BUILD
        self.seconds = 0.04 if given.quick else 0.2
        self.busy = given.busy
        self.quantile = 0.0 if given.busy else 0.5  # of the times of calls in a turn
        self.turns = given.turns or (3 if given.quick else 5)
        self._only, self.failures = re.compile(given.only), []

    def wanted(self, name):
        return self._only.search(name) is not None

    def compare(self, case, ours, others, measure):
        """The figures of a case that is wanted; where mc fails it is named and the others go on."""
        if not self.wanted(case.name):
            return
        try:
            turns.compare(case, ours, others, measure, self.turns)
        except Failed as e:
            self.failures.append(str(e))
            print(f'peers: FAILED: {e}', file=sys.stderr, flush=True)

    @staticmethod
    def targets(transport):
        """Level with a peer over the same transport; twice as fast as Mooncake's tcp by default."""
        return {'Mooncake': 1.0 if transport == 'tcp' else 2.0, 'NIXL': 1.0}


def main():
    parser = argparse.ArgumentParser(prog='bench/run peers', description=__doc__)
    parser.add_argument('--quick', action='store_true', help='the cases that say most, in three minutes')
    parser.add_argument('--section', choices=SECTIONS, action='append', help='only this part')
    parser.add_argument('--only', default='', metavar='REGEX', help='only cases whose name has this')
    parser.add_argument('--turns', type=int, default=0, help='turns of each side')
    parser.add_argument('--busy', action='store_true', help='the quickest calls of a turn and not the median '
                        'ones, and models by one thread in CPU time: for a machine that does other work as well')
    given = parser.parse_args()
    if not (BUILD / 'libmc.so').exists():
        print(f'peers: no {BUILD}/libmc.so: make release builds it', file=sys.stderr)
        return 1
    if not any(environments.python_of(name) for name in ('mooncake', 'nixl', 'llama')):
        print(f'peers: no peer in {environments.ENGINES}: scripts/setup --peers installs them', file=sys.stderr)
        return SKIPPED
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended
    with tempfile.TemporaryDirectory(prefix='mc-peers.') as folder:
        run = Run(given, folder)
        for name in given.section or SECTIONS:
            SECTIONS[name](run)
    return 1 if run.failures else 0


sys.exit(main())
