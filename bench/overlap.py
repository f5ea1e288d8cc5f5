#!/usr/bin/env python3
"""How much of the transfer layer-wise sending hides: the time from the end of computing a prompt to
its first token, against the transfer of the whole prompt, on a rail throttled so that the transfer
takes as long as computing. Real processes and real computing on this machine. --trace FILE writes
a Chrome trace of the layer-wise side. bench/run overlap."""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK, CHUNK = 64, 512  # tokens


class Cluster:
    """One prefill worker, whose sending may be throttled, and one decode worker."""

    def __init__(self, folder, name, layerwise, fault=None, traced=False):
        self.dir = folder / name
        self.script = [str(ROOT / 'scripts' / 'loopback')]
        self.at = ['--dir', str(self.dir), '--bin', os.environ['MC_BIN']]
        prefill = f'--layerwise {layerwise} --connector push --chunk-tokens {CHUNK}'
        decode = ''
        if fault is not None:
            prefill += f' --fault {fault} --peer-timeout 30s'
        if traced:
            prefill += f' --trace-events {folder}/{name}.prefill.json'
            decode = f' --trace-events {folder}/{name}.decode.json'
        command = self.script + ['up', '--prefill', '1', '--decode', '1', '--store', '0',
                                 '--engine', 'cpu', '--block-size', str(BLOCK), '--wait', '120',
                                 '--transport', 'tcp', '--with', f'prefill:{prefill}'] + self.at
        if decode:
            command += ['--with', f'decode:{decode}']
        up = subprocess.run(command, capture_output=True, text=True, check=False)
        if up.returncode != 0:
            raise RuntimeError('the cluster did not start: ' + up.stderr)
        self.url = subprocess.run(self.script + ['url'] + self.at, capture_output=True, text=True,
                                  check=True).stdout.strip()
        with urllib.request.urlopen(self.url + '/v1/models', timeout=10) as answer:
            self.model = json.load(answer)['data'][0]['id']

    def ask(self, prompt):
        """The parts of the time to the only token, in ms, and the token."""
        body = {'model': self.model, 'prompt': prompt, 'max_tokens': 1, 'temperature': 0,
                'ignore_eos': True}
        request = urllib.request.Request(self.url + '/v1/completions', json.dumps(body).encode(),
                                         {'content-type': 'application/json'})
        with urllib.request.urlopen(request, timeout=120) as answer:
            reply = json.load(answer)
        if reply['mc']['cached_tokens'] != 0:
            raise RuntimeError('a prompt was reused')
        return reply['mc'], reply['choices'][0]['text']

    def kv_bytes(self):
        address = json.loads((self.dir / 'p0.json').read_text())['http']
        with urllib.request.urlopen(f'http://{address}/metrics', timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        name = 'mc_engine_kv_transfer_bytes_total'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def down(self):
        subprocess.run(self.script + ['down'] + self.at, capture_output=True, check=False)


def measure(folder, turns, tokens, trace):
    rng = random.Random(7)
    clusters = []

    def cluster(*options, **more):
        clusters.append(Cluster(folder, *options, **more))
        return clusters[-1]

    def prompt():
        return [rng.randrange(32000) for _ in range(tokens)]

    try:
        free = cluster('free', 'off')
        computing = [free.ask(prompt())[0]['prefill_ms'] for _ in range(4)][1:]
        per_prompt = free.kv_bytes() / 4
        rate = per_prompt / (statistics.median(computing) / 1e3)
        fault = folder / 'throttle.jsonl'
        fault.write_text(json.dumps({'op': 'write', 'bandwidth': f'{int(rate)}'}) + '\n')
        late = cluster('late', 'off', fault=fault)
        layerwise = cluster('layerwise', 'on', fault=fault, traced=trace is not None)
        whole, rest = [], []
        for turn in range(turns + 1):
            words = prompt()
            off, text = late.ask(words)
            on, same = layerwise.ask(words)
            if text != same:
                raise RuntimeError('layer by layer it says another token')
            if turn > 0:
                whole.append(off['transfer_ms'])
                rest.append(on['transfer_ms'] + on['first_step_ms'])
    finally:
        for one in clusters:
            one.down()
    if trace is not None:
        events = []
        for side in ('prefill', 'decode'):
            events += json.loads((folder / f'layerwise.{side}.json').read_text())['traceEvents']
        pathlib.Path(trace).write_text(json.dumps({'traceEvents': events}))
    return whole, rest


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--quick', action='store_true', help='fewer turns, a shorter prompt')
    parser.add_argument('--trace', metavar='FILE', help='write a Chrome trace there')
    options = parser.parse_args()
    turns, tokens = (5, 2048) if options.quick else (11, 4096)
    with tempfile.TemporaryDirectory(prefix='mc-bench-') as name:
        whole, rest = measure(pathlib.Path(name), turns, tokens, options.trace)
    ratios = sorted(a / b for a, b in zip(whole, rest))
    ratio = statistics.median(ratios)
    print(json.dumps({'bench': 'overlap', 'case': f'computed to first token, {tokens} tokens',
                      'value': round(statistics.median(rest), 3), 'unit': 'ms',
                      'against': 'transfer of the whole prompt',
                      'against_value': round(statistics.median(whole), 3), 'ratio': round(ratio, 3),
                      'n': turns, 'spread': round((ratios[-1] - ratios[0]) / ratio, 3),
                      'target': 4, 'met': ratio >= 4}))
    return 0


sys.exit(main())
