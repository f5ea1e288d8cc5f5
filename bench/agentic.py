#!/usr/bin/env python3
"""Conversations on two real servers: alone, with mc-conductor before them, and with mc's pool, LMCache or
Mooncake's store beneath them; and on mc's own workers. Every turn has all that was said before in its
prompt, and with round robin its predecessor was on the other server. Hit rates are exact; times compare
within a run. Wants build/engines (scripts/setup --engines, and --peers for Mooncake). bench/run agentic;
by hand `bench/agentic.py --help` has the sizes."""
import argparse
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / 'tests/nightly'), str(ROOT / 'bench')]

from agentic_groups import ENGINES, KINDS, VERSION  # noqa: E402
from agentic_load import Answers, Workload  # noqa: E402
from agentic_table import figures, share, table  # noqa: E402
from vllm_client import Counters, Failed, used  # noqa: E402
from vllm_servers import wait_for  # noqa: E402

SKIPPED = 77
# name: what answers, what chooses one of the two, whether one is killed in the middle
ARMS = {
    '1 alone, round robin': ('alone', 'rr', False),
    '2 alone, conductor': ('alone', 'conductor', False),
    '8a alone, conductor, kill': ('alone', 'conductor', True),
    '3 pool, round robin': ('shm', 'rr', False),
    '4 pool, conductor': ('shm', 'conductor', False),
    '8b pool, conductor, kill': ('shm', 'conductor', True),
    '5 pool by tcp, round robin': ('tcp', 'rr', False),
    '6 LMCache, round robin': ('lmcache', 'rr', False),
    '7 LMCache over mc, round robin': ('lmcache-mc', 'rr', False),
    '9 Mooncake, round robin': ('mooncake', 'rr', False),
    '10a own workers alone, round robin': ('own-alone', 'dealt', False),
    '10b own workers, pool, round robin': ('own', 'dealt', False),
    '10c own workers, pool, conductor': ('own-chosen', 'dealt', False),
}


class Run:
    """One arm, from nothing cached to the last answer."""

    def __init__(self, name, group, load, rate, answers):
        self.kind, self.route, self.kill = ARMS[name]
        self.chosen = self.route == 'conductor' or name.endswith(', conductor')
        self.order = load.turned() if group.turned else load.order
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
        if self.route == 'conductor':
            self.group.front()
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
        self.group.end_front()
        if self.errors:
            raise SystemExit(f'failed: {self.name}: {self.errors[0]}')

    def spent(self):
        out = self.group.used()
        if self.lost:
            cpu, most = out['servers']
            out['servers'] = cpu + self.lost_cpu, most
        return out

    def lanes(self):
        """Lists of turns, each taken one after the other: of a server, of any, or of a conversation."""
        order = list(enumerate(self.order))
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
        half = len(self.order) // 2
        if self.kill and number > half:
            self.open.wait()
            if self.errors:
                return
        if self.rate:
            time.sleep(max(0.0, self.begun + self.held + number / self.rate - time.monotonic()))
        prompt = (self.said[c, t - 1] if t else []) + self.load.new[c][t]
        if self.kill and number == half:
            self.open.clear()
            threading.Timer(0.3, self.kill_one).start()
        begun = time.monotonic()
        while True:
            try:
                reply = self.group.ask(self.load.server(c, t), prompt)
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
            self.answers.take(prompt, reply, self.name.split()[0] in ('1', '10a'))
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
        wait_for('the conductor to see it', self.group.conductor.ready, 60)

    # ---- what it was

    def tokens(self, late=None):
        """Of prompts: all, and cached; of all turns or of those after the kill."""
        some = [r for r in self.replies if late is None or r.late == late]
        return sum(r.prompt for r in some), sum(r.cached for r in some)

    def count(self, name, label=''):
        return sum(counters.get(name, label) for counters in self.counted)

    def quantile(self, name, q):
        return Counters.quantile(self.counted, name, q)


def cold_rate(group, load):
    """Turns a second of two servers that compute everything: of turns of mean length."""
    length = load.prompt_tokens() // len(load.order)
    chance, times = random.Random(99), []

    def one(at):
        begun = time.monotonic()
        group.ask(at, [chance.randrange(1000, 40000) for _ in range(length)])
        times.append(time.monotonic() - begun)

    for _ in range(2):
        threads = [threading.Thread(target=one, args=(at,)) for at in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return 2 / statistics.mean(times)


def wanted(name, arms):
    """`8` is 8a and 8b."""
    word = name.split()[0]
    return not arms or any(one in (word, word.rstrip('abc')) for one in arms.split(','))


def here(name):
    """Whether what it needs is installed."""
    missing = [need for need in KINDS[ARMS[name][0]].needs if not (ENGINES / need / 'ready').exists()]
    if missing:
        print(f'agentic: without {name}: no {missing[0]} in {ENGINES}', file=sys.stderr)
    return not missing


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--quick', action='store_true', help='8 conversations of 4 turns, once, two turns at a time')
    parser.add_argument('--conversations', type=int)
    parser.add_argument('--turns', type=int)
    parser.add_argument('--repeat', type=int, help='runs of each arm')
    parser.add_argument('--open', type=float, help='turns come at this share of the rate of computing all; 0: two at a time')
    parser.add_argument('--arms', default='', help='those to run, by number, with commas: 1,3,8b')
    parser.add_argument('--seed', type=int, default=24)
    given = parser.parse_args()
    for name, value in zip(('conversations', 'turns', 'repeat', 'open'), (8, 4, 1, 0.0) if given.quick else (6, 12, 3, 0.7)):
        if getattr(given, name) is None:
            setattr(given, name, value)
    if not (ENGINES / f'vllm-{VERSION}/ready').exists() or not (ENGINES / 'smollm2-135m/ready').exists():
        print(f'skipped: no vLLM {VERSION} in {ENGINES}: scripts/setup --engines makes it', file=sys.stderr)
        return SKIPPED
    load = Workload(given.conversations, given.turns, given.seed)
    # mc's own workers keep KV in bf16, as the weights are: they are compared with themselves.
    answers, own = Answers(), Answers()
    arms = [name for name in ARMS if wanted(name, given.arms) and here(name)]
    runs, rates, failed = {}, {}, False
    with tempfile.TemporaryDirectory(prefix='mc-bench-') as place:
        for number in range(given.repeat):
            for kind in KINDS:
                mine = [name for name in arms if ARMS[name][0] == kind]
                if not mine:
                    continue
                folder = pathlib.Path(place) / f'{kind}-{number}'
                folder.mkdir()
                group = KINDS[kind](folder, load)
                try:
                    group.begin()
                    engine = 'own' if group.turned else 'vllm'  # computes everything at another rate
                    if given.open and engine not in rates:
                        rates[engine] = given.open * cold_rate(group, load)
                        print(f'# {rates[engine]:.3f} turns a second', flush=True)
                    for name in mine:
                        run = Run(name, group, load, rates.get(engine), own if group.turned else answers)
                        try:
                            run.play()
                        except SystemExit as wrong:  # the other arms stand for themselves
                            print(f'# {wrong}', flush=True)
                            failed = True
                            break
                        runs.setdefault(name, []).append(run)
                        print(f'# {name}: {run.seconds:.0f} s, {share(run.tokens()[1], run.tokens()[0])} cached', flush=True)
                finally:
                    group.stop()
                if runs:
                    print(table(runs, load, (answers, own), rates, given), flush=True)
    return 0 if runs and figures(runs, load, (answers, own)) and not failed else 1


if __name__ == '__main__':
    sys.exit(main())
