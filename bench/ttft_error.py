#!/usr/bin/env python3
"""Predicted against real time to the first token, live: part of a recorded trace through a loopback
cluster of two prefill and two decode workers with the dummy engine, and of each part of that time
the mean |error|, by /explain. bench/run ttft-error."""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
SKIPPED = 77
TARGET = 0.1  # of the mean TTFT
# LLaMA3-70B's times, but few bytes: KV is written, moved and compared on the CPUs that all share.
TIMES_OF = ROOT / 'configs' / 'models' / 'llama3-70b.json'
SCALE = 0.2     # of the model's times
SPEED = 1.25    # of the trace: four workers get the share that sixteen have of it at speed 1
FIRST = 50      # requests that teach the conductor this machine's times


def spec(folder):
    text = '\n'.join(line for line in TIMES_OF.read_text().splitlines()
                     if not line.lstrip().startswith('//'))
    model = json.loads(text)
    model.update({'name': 'few-bytes', 'layers': 4, 'kv-heads': 1, 'head-dim': 8})
    path = folder / 'few-bytes.json'
    path.write_text(json.dumps(model))
    return path


class Cluster:
    def __init__(self, folder):
        self.script = [str(ROOT / 'scripts' / 'loopback')]
        self.at = ['--dir', str(folder / 'cluster'), '--bin', os.environ['MC_BIN']]
        up = subprocess.run(self.script + [
            'up', '--prefill', '2', '--decode', '2', '--store', '1', '--engine', 'dummy', '--model',
            str(spec(folder)), '--block-size', '512', '--time-scale', str(SCALE), '--wait', '120',
            '--with', 'conductor:--explain-last 10000'] + self.at,
                            capture_output=True, text=True, check=False)
        if up.returncode != 0:
            raise RuntimeError('the cluster did not start: ' + up.stderr)
        self.url = subprocess.run(self.script + ['url'] + self.at, capture_output=True, text=True,
                                  check=True).stdout.strip()

    def answered(self):
        """The requests that were answered whole, by the conductor's log."""
        log = (pathlib.Path(self.at[1]) / 'conductor.log').read_text()
        return re.findall(r'request (\S+): n \d+, cached .* predicted [\d.]+; length', log)

    def explain(self, request):
        with urllib.request.urlopen(f'{self.url}/explain/{request}', timeout=10) as answer:
            return json.load(answer)

    def down(self):
        subprocess.run(self.script + ['down'] + self.at, capture_output=True, check=False)


def parts(told):
    """Predicted and real milliseconds of each part."""
    decision, outcome = told['decisions'][-1], told['outcome']
    chosen = next(c for c in decision['candidates'] if c['name'] == decision['prefill'])
    return {
        'whole': (outcome['predicted_ttft_ms'], outcome['ttft_ms']),
        'queue': (max(chosen['queue_ms'], chosen['fetch_ms'], chosen['wait_ms']),
                  outcome['sched_ms'] + outcome['queue_ms']),
        'pool and prefill': (chosen['pool_ms'] + chosen['prefill_ms'],
                             outcome['load_ms'] + outcome['prefill_ms']),
        'transfer': (chosen['transfer_ms'], outcome['transfer_ms']),
        'first step': (chosen['first_step_ms'], outcome['first_step_ms']),
    }


def measure(folder, trace, requests):
    cluster = Cluster(folder)
    try:
        ran = subprocess.run([os.path.join(os.environ['MC_BIN'], 'mc-replay'), 'run', str(trace),
                              '--url', cluster.url, '--limit', str(requests), '--speed', str(SPEED),
                              '--max-lag', '10s'],
                             capture_output=True, text=True, check=False)
        if ran.returncode not in (0, 6):
            raise RuntimeError('mc-replay: ' + ran.stderr)
        return [parts(cluster.explain(i)) for i in cluster.answered()[FIRST:]]
    finally:
        cluster.down()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--quick', action='store_true', help='fewer requests')
    parser.add_argument('--trace', help='default: conversation_trace.jsonl of MC_TEST_SHARED')
    options = parser.parse_args()
    shared = os.environ.get('MC_TEST_SHARED', str(ROOT.parent / 'shared'))
    trace = pathlib.Path(options.trace or shared + '/traces/conversation_trace.jsonl')
    if not trace.exists():
        print(f'{trace} is absent: give --trace', file=sys.stderr)
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix='mc-bench-') as name:
        seen = measure(pathlib.Path(name), trace, 200 if options.quick else 600)
    whole = statistics.mean(real for _, real in (one['whole'] for one in seen))
    for part in seen[0]:
        off = [one[part][0] - one[part][1] for one in seen]
        error = statistics.mean(map(abs, off))
        figure = {'bench': 'ttft-error', 'case': f'mean |predicted - real|: {part}',
                  'value': round(error, 3), 'unit': 'ms', 'against': 'the mean TTFT',
                  'against_value': round(whole, 3), 'ratio': round(whole / max(error, 1e-6), 3),
                  'n': len(seen), 'spread': 0, 'mean_off': round(statistics.mean(off), 3)}
        if part == 'whole':
            figure |= {'target': 1 / TARGET, 'met': error <= TARGET * whole}
        print(json.dumps(figure))
    return 0


if __name__ == '__main__':
    sys.exit(main())
