#!/usr/bin/env python3
"""How long vLLM's scheduler waits for a lookup in the pool: get_num_new_matched_tokens of new prompts, of
which the pool has half, without an engine; against a bare round trip to the master from the same process.
A loopback cluster; then the same beside two programs that compute all the time, as servers on a CPU do.
bench/run vllm-lookup."""
import argparse
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import time
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get('MC_BIN', ROOT / 'build/release')).resolve()
os.environ.update(MC_BIN=str(BUILD), MC_LIBRARY=str(BUILD / 'libmc.so'))
sys.path.insert(0, str(ROOT / 'lib/python'))
sys.dont_write_bytecode = True

import mc.cluster  # noqa: E402
from mc.vllm import keys  # noqa: E402
from mc.vllm.layout import Region  # noqa: E402
from mc.vllm.lookups import Lookups  # noqa: E402
from mc.vllm.metrics import Counters  # noqa: E402
from mc.vllm.pool import Pool  # noqa: E402
from mc.vllm.scheduler import Scheduler  # noqa: E402

BLOCKS, SIZE, PIECE = 80, 32, 256  # of a prompt of 2,560 tokens
BUDGET = 1000.0  # us, of the 99th percentile
BUSY = 'while True: pass'


def at(values, percent):
    return sorted(values)[len(values) * percent // 100]


def figures(case, lookups, bare, busy):
    for percent in (50, 99):
        mine, other = at(lookups, percent), at(bare, percent)
        said = {'bench': 'vllm-lookup', 'case': f'{case}, p{percent}', 'value': round(mine, 1), 'unit': 'us',
                'against': 'a bare round trip', 'against_value': round(other, 1), 'ratio': round(other / mine, 3),
                'n': len(lookups), 'spread': 0.0}
        if percent == 99 and not busy:
            said.update(target=BUDGET, met=mine <= BUDGET)
        print(json.dumps(said), flush=True)


class Bench:
    def __init__(self, pool):
        self.pool = pool
        self.lookups = Lookups(pool.match, 1.0, Counters().looked_up)
        self.prefixes = [keys.prefix('f' * 32, 'tp0/1@pp0/1@g0')]
        self.scheduler = Scheduler(SIZE, lambda request, _, hashes, count: self.lookups.ask(
            request, self.prefixes, hashes, count), lambda request: 'f' * 32, save=False)
        self.there = [os.urandom(32) for _ in range(BLOCKS // 2)]
        pool.put(1, self.prefixes[0], b''.join(self.there), list(range(BLOCKS // 2)))
        while not pool.take():
            pool.wait()

    def lookup(self, number):
        """Microseconds until the scheduler knows."""
        request = types.SimpleNamespace(
            request_id=f'r{number}', num_tokens=BLOCKS * SIZE + 1, num_prompt_tokens=BLOCKS * SIZE + 1, num_computed_tokens=0,
            block_hashes=self.there + [os.urandom(32) for _ in range(BLOCKS - BLOCKS // 2)])
        begun = time.perf_counter()
        while (found := self.scheduler.matched(request, 0)) is None:
            time.sleep(0.0001)
        took = time.perf_counter() - begun
        if found != BLOCKS // 2 * SIZE:
            raise SystemExit(f'failed: {found} tokens found, {BLOCKS // 2 * SIZE} are there')
        self.scheduler.finished(request, [])
        return took * 1e6

    def bare(self):
        """Microseconds of the smallest question there is."""
        begun = time.perf_counter()
        self.pool.match(self.prefixes, b'h' * 32, 1)
        return (time.perf_counter() - begun) * 1e6

    def measure(self, case, count, busy):
        lookups, bare = [], []
        for number in range(count):
            time.sleep(0.002)  # a step of the engine is not for ever asking
            bare.append(self.bare())
            time.sleep(0.002)
            lookups.append(self.lookup(number))
        figures(case, lookups, bare, busy)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--quick', action='store_true', help='fewer lookups')
    count = 300 if parser.parse_args().quick else 2000
    with mc.cluster.Cluster(nodes=1, size='64MiB') as cluster:
        pool = Pool('bench', cluster.master, {}, 10.0)
        memory = bytearray(BLOCKS * PIECE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        pool.register([Region(base, PIECE, PIECE)], BLOCKS)
        bench = Bench(pool)
        bench.measure(f'lookup of {BLOCKS} blocks', count, False)
        computing = [subprocess.Popen(['nice', '-n', '5', sys.executable, '-c', BUSY]) for _ in range(2)]
        try:
            bench.measure('the same beside two that compute', count, True)
        finally:
            for child in computing:
                child.kill()
                child.wait()
        bench.lookups.close(1.0)
        pool.close()


if __name__ == '__main__':
    main()
