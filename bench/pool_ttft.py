#!/usr/bin/env python3
"""Time to the first token of the same prompts: computed, reused where they were computed, fetched
from the memory of a store node, and from its disk, all over tcp; and from a store node over
emulated RDMA, and from redis. Real processes and real computing on this machine; the order is
checked. bench/run pool-ttft."""
import argparse
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = 64  # tokens
SKIPPED = 77


class Cluster:
    """One prefill worker, one decode worker and one store node."""

    def __init__(self, folder, options, transport='tcp', programs=os.environ['MC_BIN']):
        self.script = [str(ROOT / 'scripts' / 'loopback')]
        self.at = ['--dir', str(folder / 'cluster'), '--bin', str(programs)]
        command = self.script + ['up', '--prefill', '1', '--decode', '1', '--store', '1',
                                 '--engine', 'cpu', '--block-size', str(BLOCK), '--wait', '120',
                                 '--transport', transport] + options + self.at
        up = subprocess.run(command, capture_output=True, text=True, check=False)
        if up.returncode != 0:
            raise RuntimeError('the cluster did not start: ' + up.stderr)
        self.url = self('url').strip()
        with urllib.request.urlopen(self.url + '/v1/models', timeout=10) as answer:
            self.model = json.load(answer)['data'][0]['id']

    def __call__(self, *words):
        return subprocess.run(self.script + list(words) + self.at, capture_output=True, text=True,
                              check=True).stdout

    def metric(self, worker, name):
        with urllib.request.urlopen(self('url', worker).strip() + '/metrics', timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def on_disk_alone(self):
        """The master knows of the objects, and of no copy in memory."""
        folder = pathlib.Path(self.at[1])
        address = json.loads((folder / 'master.json').read_text())['control']
        command = [os.path.join(os.environ['MC_BIN'], 'mc-store'), 'ls', '--master', address,
                   '--cluster-key', str(folder / 'cluster.key')]
        listed = subprocess.run(command, capture_output=True, text=True,
                                check=False).stdout.splitlines()
        return listed != [] and all(' 0+disk ' in line for line in listed)

    def until(self, what, done, seconds=60):
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                raise RuntimeError(what)
            time.sleep(0.05)

    def ttft(self, prompt):
        """Milliseconds until the only token; how many prompt tokens were reused; the token."""
        body = {'model': self.model, 'prompt': prompt, 'max_tokens': 1, 'temperature': 0,
                'ignore_eos': True}
        request = urllib.request.Request(self.url + '/v1/completions', json.dumps(body).encode(),
                                         {'content-type': 'application/json'})
        begin = time.monotonic()
        with urllib.request.urlopen(request, timeout=120) as answer:
            reply = json.load(answer)
        ms = (time.monotonic() - begin) * 1e3
        reused = reply['usage']['prompt_tokens_details']['cached_tokens']
        return ms, reused, reply['choices'][0]['text']

    def down(self):
        subprocess.run(self.script + ['down'] + self.at, capture_output=True, check=False)


class Bench:
    def __init__(self, turns, tokens):
        self.turns, self.tokens = turns, tokens
        self.random = random.Random(7)
        self.times = {}
        self.text = {}

    def prompt(self):
        return [self.random.randrange(32000) for _ in range(self.tokens)]

    def take(self, cluster, case, prompt, reused):
        """One time of a case; the same prompt must say the same, and reuse what the case says."""
        ms, cached, text = cluster.ttft(prompt)
        whole = (self.tokens - 1) // BLOCK * BLOCK
        if cached != (whole if reused else 0):
            raise RuntimeError(f'{case}: {cached} of {whole} tokens were reused')
        if self.text.setdefault(tuple(prompt), text) != text:
            raise RuntimeError(f'{case}: another token than when the prompt was computed')
        if case:
            self.times.setdefault(case, []).append(ms)

    def options(self, more_prefill=''):
        # Room for one prompt and a little, so that each evicts the one before it.
        blocks = self.tokens // BLOCK + 9
        return ['--segment', '1GiB', '--pool', '1GiB', '--with',
                f'prefill:--pool-reuse always --blocks {blocks} {more_prefill}']

    def stored(self, cluster, blocks):
        cluster.until('the store does not get its blocks',
                      lambda: cluster.metric('p0', 'mc_engine_pool_blocks_stored_total') >= blocks)

    def memory(self, folder):
        self.pool(Cluster(folder, self.options()), 'cross-node hit')

    def rdma(self, folder):
        self.pool(Cluster(folder, self.options() + ['--nics', '1'], 'rdma'), 'hit over RDMA')

    def redis(self, folder):
        """A cluster whose prefill worker has redis in the place of the store."""
        socket, programs = folder / 'redis.sock', folder / 'programs'
        programs.mkdir()
        for program in pathlib.Path(os.environ['MC_BIN']).iterdir():
            if program.name != 'mc-prefill':
                (programs / program.name).symlink_to(program)
        (programs / 'mc-prefill').symlink_to(pathlib.Path(os.environ['MC_BIN']) / 'redis-worker')
        server = subprocess.Popen(
            ['redis-server', '--port', '0', '--unixsocket', str(socket), '--save', '',
             '--appendonly', 'no', '--dir', str(folder)], stdout=subprocess.DEVNULL)
        try:
            end = time.monotonic() + 20
            while not socket.exists():
                if time.monotonic() > end:
                    raise RuntimeError('redis-server does not start')
                time.sleep(0.05)
            self.pool(Cluster(folder, self.options(f'--master {socket}'), programs=programs),
                      'hit from redis')
        finally:
            server.terminate()
            server.wait()

    def pool(self, cluster, case):
        per = (self.tokens - 1) // BLOCK
        try:
            self.take(cluster, '', self.prompt(), False)  # what is slow the first time only
            self.stored(cluster, per)
            stored = cluster.metric('p0', 'mc_engine_pool_blocks_stored_total')
            for i in range(self.turns):
                prompt = self.prompt()
                first = case == 'cross-node hit'
                self.take(cluster, 'recompute' if first else '', prompt, False)
                self.take(cluster, 'local hit' if first else '', prompt, True)
                self.stored(cluster, stored + (2 * i + 1) * per)
                self.take(cluster, '', self.prompt(), False)
                self.stored(cluster, stored + (2 * i + 2) * per)
                self.take(cluster, case, prompt, True)
            fetched = cluster.metric('p0', 'mc_engine_pool_blocks_fetched_total')
            if fetched < self.turns * (per - 9):
                raise RuntimeError(f'{case}: {fetched:.0f} blocks came from the pool')
        finally:
            cluster.down()

    def disk(self, folder):
        cluster = Cluster(folder, self.options() + [
            '--with', f'store:--ssd {folder}/ssd --ssd-size 4GiB --no-ssd-promote --ssd-flush 50ms',
            '--with', 'master:--offload eager'])
        try:
            prompts = [self.prompt() for _ in range(self.turns + 1)]
            for prompt in prompts:
                self.take(cluster, '', prompt, False)
            per = (self.tokens - 1) // BLOCK
            self.stored(cluster, len(prompts) * per)
            cluster.until('the disk does not get its blocks',
                          lambda: cluster.metric('s0', 'mc_ssd_objects') >= len(prompts) * per)
            cluster('restart', 's0')  # what it has is on the disk alone now
            cluster.until('the restarted store node has nothing', cluster.on_disk_alone)
            fetched = cluster.metric('p0', 'mc_engine_pool_blocks_fetched_total')
            for prompt in prompts[:-1]:  # the last one is still cached
                self.take(cluster, 'SSD hit', prompt, True)
            fetched = cluster.metric('p0', 'mc_engine_pool_blocks_fetched_total') - fetched
            if fetched < self.turns * (per - 9):
                raise RuntimeError('SSD hit: the blocks did not come from the store')
        finally:
            cluster.down()

    def figure(self, case, against):
        a, b = self.times[case], self.times[against]
        ratios = sorted(y / x for x, y in zip(a, b))
        ratio = statistics.median(b) / statistics.median(a)
        print(json.dumps({'bench': 'pool-ttft', 'case': f'{case}, {self.tokens} tokens',
                          'value': round(statistics.median(a), 3), 'unit': 'ms', 'against': against,
                          'against_value': round(statistics.median(b), 3), 'ratio': round(ratio, 3),
                          'n': len(a), 'spread': round((ratios[-1] - ratios[0]) / ratio, 3),
                          'target': 1, 'met': ratio >= 1}), flush=True)
        return ratio >= 1


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--quick', action='store_true', help='fewer turns, a shorter prompt')
    quick = parser.parse_args().quick
    if not shutil.which('jq'):
        print('skipped: no jq: run scripts/setup', file=sys.stderr)
        return SKIPPED
    bench = Bench(5 if quick else 11, 2000 if quick else 4000)
    with tempfile.TemporaryDirectory(prefix='mc-bench-') as name:
        bench.memory(pathlib.Path(name))
        bench.disk(pathlib.Path(name))
        bench.rdma(pathlib.Path(name))
        redis = shutil.which('redis-server') is not None
        if redis:
            bench.redis(pathlib.Path(name))
        else:
            print('pool-ttft: no redis-server, not compared with it: run scripts/setup --bench',
                  file=sys.stderr)
    order = [('local hit', 'recompute'), ('cross-node hit', 'recompute'), ('SSD hit', 'recompute'),
             ('hit over RDMA', 'recompute'), ('local hit', 'cross-node hit'),
             ('cross-node hit', 'SSD hit')]
    pairs = order
    if redis:
        pairs = order + [('hit from redis', 'recompute'), ('cross-node hit', 'hit from redis'),
                  ('hit over RDMA', 'hit from redis')]
    met = [bench.figure(case, against) for case, against in pairs]
    if all(met[:len(order)]):
        return 0
    print('pool-ttft: not in the order local, cross-node, SSD, recompute', file=sys.stderr)
    return 1


sys.exit(main())
