#!/usr/bin/env python3
"""What mc costs a vLLM server that finds nothing in the pool: the seconds for prompts that never repeat,
on a server without and one with the connector, in turns; and how long its lookups took. The limit is 2 %.
Wants build/engines (scripts/setup --engines). bench/run vllm-cost."""
import argparse
import json
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / 'tests/nightly'))

from vllm_client import Counters, stream, used  # noqa: E402
from vllm_servers import ENGINES, Pool, Server  # noqa: E402

VERSION, SKIPPED = '0.32.0', 77
LENGTH, SAID, AT_ONCE = 600, 16, 4  # tokens of a prompt and of its answer; prompts of a turn
LIMIT, LOOKUP = 1.02, 0.001  # of the ratio; seconds


def turn(server, chance):
    """Seconds on the clock, and CPU seconds of the server, for prompts at once that none has seen."""
    asked = [[chance.randrange(1000, 40000) for _ in range(LENGTH)] for _ in range(AT_ONCE)]
    done = []
    threads = [threading.Thread(target=lambda tokens=tokens: done.append(stream('127.0.0.1', server.port, tokens, SAID)))
               for tokens in asked]
    cpu, begun = used(server.process)[0], time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(done) < len(asked):
        raise SystemExit(f'failed: {server.name} did not answer: {server.process.log.read_text(errors="replace")[-3000:]}')
    return time.monotonic() - begun, used(server.process)[0] - cpu


def figure(case, mine, other, unit, limit):
    """Of turns one after the other; and of the least of each, which other work disturbs less."""
    ratios = sorted(a / b for a, b in zip(mine, other))
    spread = (ratios[-1] - ratios[0]) / statistics.median(ratios)
    for how, least in ((case, False), (f'{case}: the least of each', True)):
        a, b = (min(mine), min(other)) if least else (statistics.median(mine), statistics.median(other))
        ratio = a / b if least else statistics.median(ratios)
        print(json.dumps({'bench': 'vllm-cost', 'case': how, 'value': round(a, 4), 'unit': unit, 'against': 'without mc',
                          'against_value': round(b, 4), 'ratio': round(1 / ratio, 4), 'n': len(mine),
                          'spread': round(spread, 3), 'target': round(1 / limit, 4), 'met': ratio <= limit}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--quick', action='store_true', help='fewer turns')
    parser.add_argument('--turns', type=int)
    given = parser.parse_args()
    if not (ENGINES / f'vllm-{VERSION}/ready').exists() or not (ENGINES / 'smollm2-135m/ready').exists():
        print(f'skipped: no vLLM {VERSION} in {ENGINES}: scripts/setup --engines makes it', file=sys.stderr)
        return SKIPPED
    chance, running = random.Random(3), []
    with tempfile.TemporaryDirectory(prefix='mc-bench-') as place:
        folder = pathlib.Path(place)
        try:
            pool = Pool(folder, segment='512MiB')
            running.append(pool)
            servers = []
            for name, beneath in (('without', None), ('with', pool)):
                # The cores are not shared: only one server computes at a time.
                servers.append(Server(folder, name, VERSION, beneath, kv='300M', wait=False))
                running.append(servers[-1].process)
            for server in servers:
                server.wait()
                turn(server, chance)  # what is slow the first time only
            before = Counters(servers[1].ask('GET', '/metrics')[1])
            times, cpus = ([], []), ([], [])
            for number in range(given.turns or (10 if given.quick else 40)):
                for at in (0, 1) if number % 2 else (1, 0):
                    seconds, cpu = turn(servers[at], chance)
                    times[at].append(seconds)
                    cpus[at].append(cpu)
            counted = Counters(servers[1].ask('GET', '/metrics')[1]).less(before)
        finally:
            for process in reversed(running):
                process.stop()
    figure(f'{AT_ONCE} prompts of {LENGTH} tokens, none found', times[1], times[0], 's', LIMIT)
    figure('the same, CPU time of the server', cpus[1], cpus[0], 's', LIMIT)
    lookups = counted.get('mc:lookup_seconds_count')
    worst = Counters.quantile([counted], 'mc:lookup_seconds', 0.99)
    print(json.dumps({'bench': 'vllm-cost', 'case': 'lookups p99, at most', 'value': 1e3 * worst, 'unit': 'ms',
                      'against': 'budget', 'against_value': 1e3 * LOOKUP, 'ratio': round(LOOKUP / worst, 3),
                      'n': int(lookups), 'spread': 0.0, 'target': 1.0, 'met': worst <= LOOKUP}), flush=True)
    told = {bound: f"{Counters.quantile([counted], 'mc:lookup_seconds', bound) * 1e3:.2g} ms" for bound in (0.5, 0.9, 0.99)}
    late = counted.get('mc:lookups_total', 'late')
    print(f"vllm-cost: {lookups:.0f} lookups, below {told}; {late:.0f} too late; "
          f"{counted.get('mc:loaded_blocks_total'):.0f} blocks loaded, {counted.get('mc:saved_blocks_total'):.0f} saved, "
          f"{counted.get('mc:dropped_blocks_total'):.0f} dropped")
    return 0


if __name__ == '__main__':
    sys.exit(main())
