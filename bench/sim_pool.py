#!/usr/bin/env python3
"""What a pool adds to the caches of simulated prefill nodes: the share of prompt tokens that is
reused, and the time to the first token, with it and without. Of a recorded trace of conversations
and a made one of coding agents. The figures of docs/replay.md and docs/paper.md.
bench/run sim-pool."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SKIPPED = 77
CLUSTER = ['--prefill', '8', '--decode', '8']
POOL = ['--pool-tokens', '3000000']


def replay(*words):
    program = pathlib.Path(os.environ['MC_BIN']).resolve() / 'mc-replay'
    ran = subprocess.run([str(program), *words], capture_output=True, text=True, check=False,
                         cwd=ROOT)
    if ran.returncode != 0:
        raise RuntimeError('mc-replay: ' + ran.stderr)


def simulated(trace, *more):
    """The reused share in %, TTFT in seconds (p50, p99), and how many requests there were."""
    with tempfile.TemporaryDirectory(prefix='mc-bench-') as name:
        report = pathlib.Path(name) / 'report.json'
        replay('sim', str(trace), '--report', str(report), *CLUSTER, *more)
        told = json.loads(report.read_text())
    ttft = told['metrics']['ttft_s']
    return (100 * told['cache']['hit_ratio_tokens'], ttft['p50'], ttft['p99'],
            told['requests']['sent'])


def compare(words, trace, *more):
    """Prints what the pool adds; `words` before each figure."""
    alone, pooled = simulated(trace, *more), simulated(trace, *more, *POOL)
    for case, unit, at in (('tokens reused', '%', 0), ('TTFT p50', 's', 1), ('TTFT p99', 's', 2)):
        ratio = pooled[at] / alone[at] if unit == '%' else alone[at] / pooled[at]
        print(json.dumps({'bench': 'sim-pool', 'case': words + case, 'value': round(pooled[at], 3),
                          'unit': unit, 'against': 'no pool', 'against_value': round(alone[at], 3),
                          'ratio': round(ratio, 3), 'n': pooled[3], 'spread': 0}), flush=True)


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
    compare('', trace, '--cache-tokens', '500000')
    with tempfile.TemporaryDirectory(prefix='mc-bench-') as name:
        agents = pathlib.Path(name) / 'agentic.jsonl'
        replay('synth', '--profile', 'agentic', '--seed', '1', '--out', str(agents))
        compare('agents: ', agents, '--cache-tokens', '500000')
        compare('agents, small: ', agents, '--cache-tokens', '250000')
        compare('agents, load: ', agents, '--cache-tokens', '500000', '--policy', 'load',
                '--queue-timeout', '0s', '--prefill-timeout', '0s')
    return 0


if __name__ == '__main__':
    sys.exit(main())
