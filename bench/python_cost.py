#!/usr/bin/env python3
"""What the Python package costs: its part of a step that puts or gets 1,000 blocks of 32 layers,
against half a millisecond; 512 keys looked up by Store.exists_many, against the same calls in C.
A loopback cluster on this machine. bench/run python."""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get('MC_BIN', ROOT / 'build/release')).resolve()
os.environ.update(MC_BIN=str(BUILD), MC_LIBRARY=str(BUILD / 'libmc.so'))
sys.path.insert(0, str(ROOT / 'lib/python'))
sys.dont_write_bytecode = True

import mc  # noqa: E402
import mc.cluster  # noqa: E402

BLOCKS, LAYERS, BYTES = 1000, 32, 64
LIMIT_US, KEYS, CALLS = 500.0, 512, 200


def figure(case, values, against, others, target):
    value, other = statistics.median(values), statistics.median(others)
    ratio = statistics.median(o / v for v, o in zip(values, others))
    print(json.dumps({'bench': 'python', 'case': case, 'value': round(value, 1), 'unit': 'us',
                      'against': against, 'against_value': round(other, 1), 'ratio': round(ratio, 3),
                      'n': len(values), 'spread': round((max(values) - min(values)) / value, 3),
                      'target': target, 'met': ratio >= target}), flush=True)


def step(queue, begin):
    """CPU time of this thread from the call to its result, in us; others move the bytes."""
    start = time.thread_time_ns()
    begin()
    spent = time.thread_time_ns() - start
    queue.wait(60)
    start = time.thread_time_ns()
    done = queue.take()
    spent += time.thread_time_ns() - start
    assert len(done) == 1 and not done[0].failed, done[0].result().failed()[:3]
    return spent / 1e3


def blocks(store, turns):
    memory = bytearray(BLOCKS * LAYERS * BYTES)
    regions = [mc.Region(memory, BYTES, stride=BYTES, offset=layer * BLOCKS * BYTES)
               for layer in range(LAYERS)]
    numbers = list(range(BLOCKS))
    puts, gets = [], []
    with store.layout(regions, BLOCKS) as layout, store.queue() as queue:
        for turn in range(turns + 1):
            hashes = [(turn * BLOCKS + n).to_bytes(32, 'little') for n in range(BLOCKS)]
            puts.append(step(queue, lambda: queue.put_blocks(layout, 'bench@', hashes, numbers)))
            gets.append(step(queue, lambda: queue.get_blocks(layout, 'bench@', hashes, numbers)))
    limit = [LIMIT_US] * turns
    figure(f'put {BLOCKS} blocks x {LAYERS}', puts[1:], 'the limit', limit, 1.0)
    figure(f'get {BLOCKS} blocks x {LAYERS}', gets[1:], 'the limit', limit, 1.0)


def exists(store, peer, turns):
    keys = [f'vllm:0123456789abcdef@{n:064x}' for n in range(KEYS)]
    ours, theirs = [], []
    for _ in range(turns + 1):
        times = []
        for _ in range(CALLS):
            start = time.perf_counter_ns()
            store.exists_many(keys)
            times.append(time.perf_counter_ns() - start)
        ours.append(statistics.median(times) / 1e3)
        peer.stdin.write('\n')
        peer.stdin.flush()
        theirs.append(float(peer.stdout.readline()) / 1e3)
    figure(f'exists {KEYS} keys', ours[1:], 'the same in C', theirs[1:], round(1 / 1.3, 3))


def main():
    turns = 3 if '--quick' in sys.argv[1:] else 15
    with tempfile.TemporaryDirectory() as folder, \
            mc.cluster.Cluster(nodes=1, size='256MiB') as cluster, \
            mc.Store(cluster.master) as store:
        program = pathlib.Path(folder) / 'python_peer'
        subprocess.run(['cc', '-O2', '-I', ROOT / 'lib/capi', ROOT / 'bench/python_peer.c',
                        BUILD / 'libmc.so', f'-Wl,-rpath,{BUILD}', '-o', program], check=True)
        blocks(store, turns)
        with subprocess.Popen([program, cluster.master, str(KEYS)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True) as peer:
            exists(store, peer, turns)
            peer.stdin.close()


main()
