#!/usr/bin/env python3
"""Conversations on two real vLLM servers: alone, with mc-conductor before them, and with mc's pool
beneath them. Every turn has all that was said before in its prompt, and with round robin its predecessor
was on the other server. Hit rates are exact; times compare within a run. Wants build/engines
(scripts/setup --engines). bench/run agentic; by hand `bench/agentic.py --help` has the sizes."""
import argparse
import json
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import OrderedDict

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / 'tests/nightly'))

from vllm_client import Counters, Failed, stream, used  # noqa: E402
from vllm_servers import BLOCK, ENGINES, Front, Pool, Server, free_port, wait_for  # noqa: E402

VERSION, SKIPPED, TARGET = '0.32.0', 77, 4.0
NEW, SAID = 200, 16  # tokens of a turn: of the prompt, of the answer
BLOCK_BYTES = 30 * 3 * 2 * 64 * 4 * BLOCK  # SmolLM2-135M in float32
CLOSE = 1e-3  # two best logprobs nearer than this are decided by the order of a sum

# name: what is beneath the servers, what chooses one, whether one is killed in the middle
ARMS = {
    '1 alone, round robin': (None, 'rr', False),
    '2 alone, conductor': (None, 'conductor', False),
    '8a alone, conductor, kill': (None, 'conductor', True),
    '3 pool, round robin': ('shm', 'rr', False),
    '4 pool, conductor': ('shm', 'conductor', False),
    '8b pool, conductor, kill': ('shm', 'conductor', True),
    '5 pool by tcp, round robin': ('tcp', 'rr', False),
}


class Workload:
    """Conversations that grow by a turn each, in the order of turns."""

    def __init__(self, conversations, turns, seed):
        chance = random.Random(seed)
        self.conversations, self.turns = conversations, turns
        self.new = [[[chance.randrange(1000, 40000) for _ in range(NEW)] for _ in range(turns)]
                    for _ in range(conversations)]
        self.order = [(c, t) for t in range(turns) for c in range(conversations)]
        self.longest = turns * (NEW + SAID)  # tokens

    def length(self, turn):
        return turn * (NEW + SAID) + NEW

    def server(self, conversation, turn):
        """Round robin: the other one than before."""
        return (conversation + turn) % 2

    def prompt_tokens(self):
        return sum(self.length(t) for _, t in self.order)

    def seen_before(self, whole=1):
        """Tokens of prompts that some earlier turn had computed; the KV of its last token it had not."""
        return sum(max(0, t * (NEW + SAID) - 1) // whole * whole for _, t in self.order)

    def blocks(self):
        """Of one server: what the longest conversation takes, and no less than an eighth of all."""
        longest = -(-self.longest // BLOCK) + 1
        return max(longest, -(-self.conversations * self.longest // BLOCK // 8))

    def predicted(self, shared):
        """Hit tokens, own and pool's, of LRU caches of that size, turn after turn."""
        own, pool, caches, stored = 0, 0, (OrderedDict(), OrderedDict()), set()
        for c, t in self.order:
            cache = caches[self.server(c, t)]
            names = [(c, n) for n in range((self.length(t) + SAID - 1) // BLOCK)]
            most = (self.length(t) - 1) // BLOCK
            hit = next((n for n in range(most) if names[n] not in cache), most)
            more = next((n for n in range(hit, most) if names[n] not in stored), most) if shared else hit
            own, pool = own + hit * BLOCK, pool + (more - hit) * BLOCK
            for name in names:
                cache.pop(name, None)
            while len(cache) + len(names) + 1 > self.blocks():
                cache.popitem(last=False)
            cache.update(dict.fromkeys(reversed(names)))  # the ends go first
            stored.update(names)
        return own, pool


class Answers:
    """What each prompt is answered; the first answer is what others are compared with."""

    def __init__(self):
        self.first = {}
        self.equal = self.close = self.wrong = self.unknown = 0

    def take(self, prompt, reply, reference):
        key = tuple(prompt)
        if key not in self.first:
            self.unknown += not reference
            self.first[key] = reply
            return
        known = self.first[key]
        at = next((n for n, (a, b) in enumerate(zip(known.tokens, reply.tokens)) if a != b), None)
        if at is None:
            self.equal += 1
        elif known.gaps[at] < CLOSE:
            self.close += 1
        else:
            self.wrong += 1
            print(f'agentic: a wrong answer: {reply.tokens} for {known.tokens}, gap {known.gaps[at]}', file=sys.stderr)


class Group:
    """Two servers, and the pool beneath them."""

    def __init__(self, folder, kind, load):
        self.folder, self.kind, self.load = folder, kind, load
        self.pool = None
        self.events, self.replays = ([free_port() for _ in range(2)] for _ in range(2))
        self.servers = []

    def begin(self):
        if self.kind:
            whole = self.load.conversations * self.load.longest // BLOCK * BLOCK_BYTES
            self.pool = Pool(self.folder, segment=f'{(whole * 5 // 4 >> 20) + 64}MiB')
        self.servers += [self.start(at) for at in range(2)]
        for server in self.servers:
            server.wait()
        for server in self.servers:  # what is slow the first time only
            stream('127.0.0.1', server.port, [5] * (self.load.longest // 2), SAID)

    def start(self, at, port=None):
        # vLLM binds what has a star, and connects to all else.
        events = {'enable_kv_cache_events': True, 'publisher': 'zmq', 'endpoint': f'tcp://*:{self.events[at]}',
                  'replay_endpoint': f'tcp://*:{self.replays[at]}'}
        more = {'transports': 'tcp'} if self.kind == 'tcp' else {}
        return Server(self.folder, f'{self.kind or "alone"}{at}', VERSION, self.pool, longest=self.load.longest,
                      kv=self.load.blocks() * BLOCK_BYTES, wait=False, threads='1', port=port,
                      flags=['--kv-events-config', json.dumps(events)], **(more if self.pool else {}))

    def clean(self):
        """Nothing is cached anywhere."""
        external = 'true' if self.pool else 'false'

        def done(server):
            status, text = server.ask('POST', f'/reset_prefix_cache?reset_external={external}')
            return status == 200 and json.loads(text)['success']

        for server in self.servers:
            wait_for(f'a reset of {server.name}', lambda server=server: done(server), 60)
        if self.pool:
            self.pool.remove('vllm:')

    def counters(self):
        return [Counters(server.ask('GET', '/metrics')[1]) for server in self.servers]

    def used(self):
        """CPU seconds and memory at most, in bytes: of the servers, of the pool."""
        out = {'servers': used(*(server.process for server in self.servers))}
        if self.pool:
            out['pool'] = used(self.pool.process, *self.pool.nodes.values())
        return out

    def stop(self):
        for server in self.servers:
            server.process.stop()
        if self.pool:
            self.pool.stop()


def front(group):
    """mc-conductor before the servers of a group."""
    return Front(group.folder, [
        {'instance_id': server.name, 'url': f'http://127.0.0.1:{server.port}', 'modelname': 'm', 'block_size': BLOCK,
         'endpoint': f'tcp://127.0.0.1:{events}', 'replay_endpoint': f'tcp://127.0.0.1:{replays}', 'kv_group': server.name}
        for server, events, replays in zip(group.servers, group.events, group.replays)], '--policy', 'kvcache')


class Run:
    """One arm, from nothing cached to the last answer."""

    def __init__(self, name, group, load, rate, answers):
        self.kind, self.route, self.kill = ARMS[name]
        self.name, self.group, self.load, self.rate, self.answers = name, group, load, rate, answers
        self.said = {}  # conversation and turn -> what it became
        self.done = {key: threading.Event() for key in load.order}
        self.replies, self.lock = [], threading.Lock()
        self.asked_again = self.retaken = 0
        self.open = threading.Event()  # after the kill, until the server is back
        self.open.set()
        self.held = 0.0
        self.errors = []

    def play(self):
        self.group.clean()
        self.conductor = front(self.group) if self.route == 'conductor' else None
        before, self.lost = self.group.counters(), []
        spent = self.spent()
        queues = self.lanes()
        self.begun = time.monotonic()
        threads = [threading.Thread(target=self.lane, args=(queue,)) for queue in queues]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.seconds = time.monotonic() - self.begun - self.held
        after = self.group.counters()
        self.counted = [new.less(old) for new, old in zip(after, before if not self.lost else [before[0], Counters(b'')])]
        self.counted += [lost.less(before[1]) for lost in self.lost]
        self.spent = {key: (cpu - spent.get(key, (0, 0))[0], most) for key, (cpu, most) in self.spent().items()}
        if self.conductor:
            self.conductor.process.stop()
        if self.errors:
            raise SystemExit(f'failed: {self.name}: {self.errors[0]}')

    def spent(self):
        out = self.group.used()
        if self.conductor:
            out['conductor'] = used(self.conductor.process)
        if self.lost:
            cpu, most = out['servers']
            out['servers'] = cpu + self.lost_cpu, most
        return out

    def lanes(self):
        """Lists of turns, each taken one after the other: of a server, of any, or of a conversation."""
        order = list(enumerate(self.load.order))
        if self.rate:
            return [[e for e in order if e[1][0] == c] for c in range(self.load.conversations)]
        if self.route == 'rr':
            return [[e for e in order if self.load.server(*e[1]) == at] for at in range(2)]
        return [order, order]  # shared

    def lane(self, queue):
        try:
            while True:
                with self.lock:
                    if not queue:
                        return
                    number, key = queue.pop(0)
                self.turn(number, *key)
        except BaseException as wrong:  # the other lanes shall not wait for ever
            self.errors.append(wrong)
            for event in self.done.values():
                event.set()

    def turn(self, number, c, t):
        if t:
            self.done[c, t - 1].wait()
            if self.errors:
                return
        half = len(self.load.order) // 2
        if self.kill and number > half:
            self.open.wait()
            if self.errors:
                return
        if self.rate:
            time.sleep(max(0.0, self.begun + self.held + number / self.rate - time.monotonic()))
        prompt = (self.said[c, t - 1] if t else []) + self.load.new[c][t]
        port = self.conductor.port if self.conductor else self.group.servers[self.load.server(c, t)].port
        model = self.conductor.model if self.conductor else 'm'
        if self.kill and number == half:
            self.open.clear()
            threading.Timer(0.3, self.kill_one).start()
        begun = time.monotonic()
        while True:
            try:
                reply = stream('127.0.0.1', port, prompt, SAID, model=model)
                break
            except Failed as wrong:
                self.asked_again += 1
                if not self.kill or time.monotonic() - begun > 300:
                    raise SystemExit(f'failed: a turn has no answer: {wrong}') from wrong
                time.sleep(0.2)
        reply.total = time.monotonic() - begun
        reply.prompt, reply.first_seconds = len(prompt), reply.first - begun
        reply.late = self.kill and number > half
        with self.lock:
            self.replies.append(reply)
            self.answers.take(prompt, reply, self.name.startswith('1 '))
        self.said[c, t] = prompt + reply.tokens
        self.done[c, t].set()

    def kill_one(self):
        try:
            self.kill_and_start()
        except BaseException as wrong:
            self.errors.append(wrong)
        self.open.set()

    def kill_and_start(self):
        begun, server = time.monotonic(), self.group.servers[1]
        self.lost = [Counters(server.ask('GET', '/metrics')[1])]
        self.lost_cpu = used(server.process)[0]
        server.process.kill()
        self.group.servers[1] = self.group.start(1, server.port)
        self.conductor_follows()
        self.held = time.monotonic() - begun

    def conductor_follows(self):
        self.group.servers[1].wait()
        wait_for('the conductor to see it', self.conductor.ready, 60)

    # ---- what it was

    def tokens(self, late=None):
        """Of prompts: all, and cached; of all turns or of those after the kill."""
        some = [r for r in self.replies if late is None or r.late == late]
        return sum(r.prompt for r in some), sum(r.cached for r in some)

    def count(self, name, label=''):
        return sum(counters.get(name, label) for counters in self.counted)

    def quantile(self, name, q):
        return Counters.quantile(self.counted, name, q)


def share(part, whole):
    return f'{100 * part / whole:.1f} %' if whole else '-'


def quantile(values, q):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def row_values(runs, load):
    """What one arm's column of the table says, over its runs."""
    run = runs[-1]
    first = [r.first_seconds for one in runs for r in one.replies]
    total, cached = run.tokens()
    pool = run.count('vllm:external_prefix_cache_hits_total')
    medians = [statistics.median(r.first_seconds for r in one.replies) for one in runs]
    rates = [len(one.replies) * SAID / one.seconds for one in runs]
    shared = run.kind is not None
    own, more = load.predicted(shared)
    cpu = {key: value[0] for key, value in run.spent.items()}
    most = {key: value[1] for key, value in run.spent.items()}
    late = run.tokens(True)
    return {
        'hit rate, own cache': share(cached - pool, total),
        'hit rate, pool': share(pool, total) if shared else '-',
        '**hit rate**': share(cached, total),
        'predicted (LRU of that size), own + pool': f'{share(own, total)} + {share(more, total)}'
        if run.route == 'rr' else '-',
        'after the kill': share(late[1], late[0]) if run.kill else '-',
        'TTFT p50, s': f'{statistics.median(first):.2f}',
        'TTFT p90, s': f'{quantile(first, 0.9):.2f}',
        'TTFT p99, s': f'{quantile(first, 0.99):.2f}',
        'whole answer p50, s': f'{statistics.median(r.total for one in runs for r in one.replies):.2f}',
        'output tokens/s': f'{statistics.median(rates):.2f}',
        'loaded, saved, MB': f"{run.count('mc:loaded_bytes_total') / 1e6:.0f}, "
                             f"{run.count('mc:saved_blocks_total') * BLOCK_BYTES / 1e6:.0f}" if shared else '-',
        'lookups p50, p99, ms (at most)': f"{1e3 * run.quantile('mc:lookup_seconds', 0.5):.3g}, "
                                          f"{1e3 * run.quantile('mc:lookup_seconds', 0.99):.3g}" if shared else '-',
        'lookups too late': f"{run.count('mc:lookups_total', 'late'):.0f}" if shared else '-',
        'blocks failed, dropped': f"{run.count('mc:failed_blocks_total'):.0f}, "
                                  f"{run.count('mc:dropped_blocks_total'):.0f}" if shared else '-',
        'CPU s: servers, pool, conductor': ', '.join(f'{cpu.get(key, 0):.1f}' for key in ('servers', 'pool', 'conductor')),
        'memory at most, MB: the same': ', '.join(f'{most.get(key, 0) / 1e6:.0f}' for key in ('servers', 'pool', 'conductor')),
        'asked again': str(run.asked_again) if run.kill else '-',
        'spread of TTFT p50, of tokens/s': f'{spread(medians):.2f}, {spread(rates):.2f}' if len(runs) > 1 else '-',
    }


def spread(values):
    return (max(values) - min(values)) / statistics.median(values)


def table(runs, load, answers, rate, given):
    """Of all arms, a column each."""
    total = load.prompt_tokens()
    working = load.conversations * load.longest
    lines = [f'{load.conversations} conversations of {load.turns} turns, {NEW} tokens in and {SAID} out a turn; '
             + (f'{rate:.3f} turns/s' if rate else 'two turns at a time') + f'; {given.repeat} runs',
             f'bound of any cache {share(load.seen_before(), total)}, in whole blocks {share(load.seen_before(BLOCK), total)}',
             f'working set {working} tokens = {working / ((load.blocks() - 1) * BLOCK):.1f} x a server\'s own KV',
             f'answers: {answers.equal} equal to those computed alone, {answers.close} decided by less than {CLOSE}, '
             f'{answers.wrong} wrong, {answers.unknown} with nothing to compare', '']
    columns = {name: row_values(of, load) for name, of in runs.items()}
    lines.append('| | ' + ' | '.join(columns) + ' |')
    lines.append('|---' * (len(columns) + 1) + '|')
    for row in next(iter(columns.values())):
        lines.append(f'| {row} | ' + ' | '.join(of[row] for of in columns.values()) + ' |')
    return '\n'.join(lines)


def figure(case, value, unit, against, against_value, ratio, n, target=None, met=None):
    said = {'bench': 'agentic', 'case': case, 'value': round(value, 4), 'unit': unit, 'against': against,
            'against_value': round(against_value, 4), 'ratio': round(ratio, 3), 'n': n, 'spread': 0.0}
    if target is not None:
        said.update(target=target, met=bool(met))
    print(json.dumps(said), flush=True)
    return met is not False


def figures(runs, load, answers):
    """Whether the targets are met; times are only compared, since what else runs decides them."""
    total, good = load.prompt_tokens(), True
    bound = 100 * load.seen_before(BLOCK) / total
    for name, of in runs.items():
        rate = 100 * of[-1].tokens()[1] / of[-1].tokens()[0]
        target = 0.98 if name.startswith(('3', '5')) else None
        good &= figure(f'hit rate, {name}', rate, '%', 'whole blocks', bound, rate / bound, len(of[-1].replies), target,
                       bound - rate <= 2 if target else None)
    cold = [r.first_seconds for run in runs.get('1 alone, round robin', []) for r in run.replies]
    for name, of in runs.items():
        if cold and not name.startswith('1'):
            mine = statistics.median(r.first_seconds for run in of for r in run.replies)
            ratio = statistics.median(cold) / mine
            target = TARGET if name.startswith('3') and load.turns >= 12 else None
            figure(f'TTFT p50, {name}', mine, 's', '1 alone', statistics.median(cold), ratio, len(cold), target,
                   ratio >= TARGET if target else None)
    good &= figure('wrong answers', answers.wrong, 'answers', 'computed alone', answers.equal + answers.close, 1.0,
                   answers.equal, 1.0, answers.wrong == 0 and answers.equal > 0)
    return good


def cold_rate(group, load):
    """Turns a second of two servers that compute everything: of turns of mean length."""
    length = load.prompt_tokens() // len(load.order)
    chance, times = random.Random(99), []

    def one(server):
        begun = time.monotonic()
        stream('127.0.0.1', server.port, [chance.randrange(1000, 40000) for _ in range(length)], SAID)
        times.append(time.monotonic() - begun)

    for _ in range(2):
        threads = [threading.Thread(target=one, args=(server,)) for server in group.servers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return 2 / statistics.mean(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--quick', action='store_true', help='8 conversations of 4 turns, once, two turns at a time')
    parser.add_argument('--conversations', type=int)
    parser.add_argument('--turns', type=int)
    parser.add_argument('--repeat', type=int, help='runs of each arm')
    parser.add_argument('--open', type=float, help='turns come at this share of the rate of computing all; 0: two at a time')
    parser.add_argument('--arms', default='', help='the first characters of those to run, with commas')
    parser.add_argument('--seed', type=int, default=24)
    given = parser.parse_args()
    for name, value in zip(('conversations', 'turns', 'repeat', 'open'), (8, 4, 1, 0.0) if given.quick else (6, 12, 3, 0.7)):
        if getattr(given, name) is None:
            setattr(given, name, value)
    if not (ENGINES / f'vllm-{VERSION}/ready').exists() or not (ENGINES / 'smollm2-135m/ready').exists():
        print(f'skipped: no vLLM {VERSION} in {ENGINES}: scripts/setup --engines makes it', file=sys.stderr)
        return SKIPPED
    load, answers = Workload(given.conversations, given.turns, given.seed), Answers()
    wanted = tuple(given.arms.split(',')) if given.arms else ''
    arms = [name for name in ARMS if name.startswith(wanted)]
    runs, rate = {}, None
    with tempfile.TemporaryDirectory(prefix='mc-bench-') as place:
        for number in range(given.repeat):
            for kind in (None, 'shm', 'tcp'):
                mine = [name for name in arms if ARMS[name][0] == kind]
                if not mine:
                    continue
                folder = pathlib.Path(place) / f'{kind}-{number}'
                folder.mkdir()
                group = Group(folder, kind, load)
                try:
                    group.begin()
                    if given.open and rate is None:
                        rate = given.open * cold_rate(group, load)
                        print(f'# {rate:.3f} turns a second')
                    for name in mine:
                        run = Run(name, group, load, rate, answers)
                        run.play()
                        runs.setdefault(name, []).append(run)
                        print(f'# {name}: {run.seconds:.0f} s, {share(run.tokens()[1], run.tokens()[0])} cached', flush=True)
                finally:
                    group.stop()
                print(table(runs, load, answers, rate, given), flush=True)
    return 0 if figures(runs, load, answers) else 1


if __name__ == '__main__':
    sys.exit(main())
