#!/usr/bin/env python3
"""What a pool adds to the caches of simulated prefill nodes: the share of a recorded trace's prompt
tokens that is reused, and the median time to the first token, with it and without. The figures of
docs/replay.md. bench/run sim-pool."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SKIPPED = 77
CLUSTER = ['--prefill', '8', '--decode', '8', '--cache-tokens', '500000']
POOL = ['--pool-tokens', '3000000']


def simulated(trace, more):
    """The reused share in %, the median TTFT in seconds, and how many requests there were."""
    with tempfile.TemporaryDirectory(prefix='mc-bench-') as name:
        report = pathlib.Path(name) / 'report.json'
        program = pathlib.Path(os.environ['MC_BIN']).resolve() / 'mc-replay'
        ran = subprocess.run([str(program), 'sim', str(trace), '--report', str(report)] + CLUSTER +
                             more, capture_output=True, text=True, check=False, cwd=ROOT)
        if ran.returncode != 0:
            raise RuntimeError('mc-replay: ' + ran.stderr)
        told = json.loads(report.read_text())
    return (100 * told['cache']['hit_ratio_tokens'], told['metrics']['ttft_s']['p50'],
            told['requests']['sent'])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--quick', action='store_true', help='the same: it takes seconds')
    parser.add_argument('--trace', help='default: conversation_trace.jsonl of MC_TEST_SHARED')
    options = parser.parse_args()
    shared = os.environ.get('MC_TEST_SHARED', str(ROOT.parent / 'shared'))
    trace = pathlib.Path(options.trace or shared + '/traces/conversation_trace.jsonl').resolve()
    if not trace.exists():
        print(f'{trace} is absent: give --trace', file=sys.stderr)
        return SKIPPED
    alone, pooled = simulated(trace, []), simulated(trace, POOL)
    for case, unit, at, ratio in (('tokens reused', '%', 0, pooled[0] / alone[0]),
                                  ('TTFT p50', 's', 1, alone[1] / pooled[1])):
        print(json.dumps({'bench': 'sim-pool', 'case': case, 'value': round(pooled[at], 3),
                          'unit': unit, 'against': 'no pool', 'against_value': round(alone[at], 3),
                          'ratio': round(ratio, 3), 'n': pooled[2], 'spread': 0}))
    return 0


if __name__ == '__main__':
    sys.exit(main())
