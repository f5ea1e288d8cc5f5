#!/usr/bin/env python3
"""Tensors that torch allocated on a GPU, read and written by another process through the Python
package, beside torch's own copies. GB/s, the median of forty. bench/run gpu-tensors."""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get('MC_BIN', ROOT / 'build/release')).resolve()
os.environ.setdefault('MC_LIBRARY', str(BUILD / 'libmc.so'))
sys.path.insert(0, str(ROOT / 'lib/python'))
sys.dont_write_bytecode = True

import mc  # noqa: E402

try:
    import torch
except ImportError:
    torch = None
SIZE, TURNS = 64 << 20, 40


def rate(call):
    """GB/s, and how far its quartiles are apart. The engine tries each of its ways in the first turns."""
    times = []
    for _ in range(TURNS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    low, median, high = statistics.quantiles(times, n=4)
    return SIZE / median / 1e9, (high - low) / median


def copied(to, source):
    """torch's own copy, and its end."""
    to.copy_(source)
    torch.cuda.synchronize()


def other_side(address, offset, transports):
    """The process that reads and writes the tensor of the first one."""
    with mc.Engine('bench-other', transports=transports, devices='cuda') as engine:
        mine = torch.zeros(SIZE, dtype=torch.uint8, device='cuda:0')
        torch.cuda.synchronize()
        pinned = torch.zeros(SIZE, dtype=torch.uint8, pin_memory=True)
        plain = torch.zeros(SIZE, dtype=torch.uint8)
        peer = engine.open(address, timeout=20)
        with engine.register(mine) as tensor, engine.allocate(SIZE) as own:
            for end, local, to in (('a tensor', tensor, torch.empty_like(mine)),
                                   ('pinned host memory', own, pinned),
                                   ('other host memory', bytearray(SIZE), plain)):
                for way, move, ends in (('into', peer.read, (to, mine)),
                                        ('from', peer.write, (mine, to))):
                    against, _ = rate(lambda ends=ends: copied(*ends))
                    value, spread = rate(lambda local=local, move=move: move(local, offset, timeout=60))
                    print(json.dumps({
                        'bench': 'gpu-tensors', 'case': f'{transports}: {way} {end}',
                        'value': round(value, 1), 'unit': 'GB/s', 'against': "torch's copy there",
                        'against_value': round(against, 1), 'ratio': round(value / against, 3),
                        'n': TURNS, 'spread': round(spread, 3)}), flush=True)


def main():
    if torch is None or not torch.cuda.is_available():
        print('gpu-tensors: skipped: wants torch and a GPU that it can use', file=sys.stderr)
        return 77
    if sys.argv[1:2] == ['--other']:
        other_side(sys.argv[2], int(sys.argv[3]), sys.argv[4])
        return 0
    for transports in ('shm,tcp', 'tcp'):
        with mc.Engine('bench-owner', transports=transports, devices='cuda') as engine:
            given = torch.randint(0, 255, (SIZE,), dtype=torch.uint8, device='cuda:0')
            torch.cuda.synchronize()
            with engine.register(given) as offered:
                subprocess.run([sys.executable, __file__, '--other', engine.address,
                                str(offered.offset), transports], check=True)
    return 0


if __name__ == '__main__':
    sys.exit(main())
