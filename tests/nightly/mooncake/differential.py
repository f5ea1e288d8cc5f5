#!/usr/bin/env python3
"""Seeded calls over the real mooncake package and over mc.compat.mooncake; answers must be equal.

    differential.py --real VENV [--seed N] [--count N] [--engine]

differences.txt lists those that are allowed, and none of them may be unused. On another difference it
prints the seed and the shortest sequence of calls that shows it, and fails.
"""
import argparse
import collections
import json
import os
import pathlib
import queue
import socket
import subprocess
import sys
import threading

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parents[2]
sys.path[:0] = [str(SOURCE / 'lib/python'), str(HERE)]
import mc.cluster  # noqa: E402
import operations  # noqa: E402

SEGMENT = 64 << 20
SECONDS = 60.0  # for one answer


class Died(Exception):
    """A worker's process has ended, or does not answer."""


class Worker:
    """One worker.py."""

    def __init__(self, python, environment, *words):
        self.child = subprocess.Popen([python, HERE / 'worker.py', *words], text=True, bufsize=1,
                                      env={**os.environ, **environment}, stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.answers = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        assert self.take() == 'ready'

    def _read(self):
        for line in self.child.stdout:
            self.answers.put(json.loads(line))
        self.answers.put(Died(f'the process ended: {self.child.wait()}'))

    def ask(self, call):
        try:
            self.child.stdin.write(json.dumps(call) + '\n')
        except BrokenPipeError:
            pass  # `take` tells it

    def take(self):
        try:
            found = self.answers.get(timeout=SECONDS)
        except queue.Empty:
            found = Died(f'no answer in {SECONDS:.0f} s')
        if isinstance(found, Died):
            raise found
        return found

    def close(self):
        self.child.kill()
        self.child.wait()


class Side:
    """One implementation: a store with its pool, or two engines."""

    def __init__(self, start):
        self.start = start
        self.workers = start()

    def ask(self, call):
        self.workers[0].ask(call)

    def take(self):
        try:
            return self.workers[0].take()
        except Died as e:
            self.restart()
            return f'DIED: {e}'

    def call(self, call):
        self.ask(call)
        return self.take()

    def restart(self):
        self.close()
        self.workers = self.start()

    def close(self):
        for worker in self.workers:
            worker.close()


def sizes(answer):
    """An answer without the bytes."""
    if isinstance(answer, list) and answer and isinstance(answer[0], list) and len(answer) == 2 and isinstance(
            answer[1], int):
        return answer[0]  # codes, and the memory
    return [a[0] if isinstance(a, list) else a.split()[0] if isinstance(a, str) else a for a in answer]


class Pair(Side):
    """Two engines: an answer is that of the first, the notices and the memory of the second."""

    def __init__(self, start):
        super().__init__(start)
        self.name, self.base = self.peer('where')[0]

    def restart(self):
        super().restart()
        self.name, self.base = self.peer('where')[0]

    def peer(self, *call):
        self.workers[1].ask(call)
        return self.workers[1].take()

    def there(self, word):
        if isinstance(word, list):
            return [self.there(w) for w in word]
        if isinstance(word, dict) and 'peer' in word:
            return self.base + word['peer']
        return self.name if word == '{peer}' else word

    def ask(self, call):
        self.first = call[0]
        self.workers[0].ask(self.there(call))

    def take(self):
        answer = super().take()
        if self.first == 'reset':
            self.peer('reset')
        return [answer, self.peer('get_notifies')[0], self.peer('memory')[0]]


class Differences:
    """The lines of differences.txt: method | condition | theirs | ours | why."""

    def __init__(self, path):
        self.rules, self.used = [], collections.Counter()
        for line in path.read_text().splitlines():
            if line and line[0] != '#':
                method, condition, theirs, ours, why = (w.strip() for w in line.split(' | ', 4))
                self.rules.append((method.split(), condition, theirs, ours, why))

    def explain(self, call, theirs, ours):
        """The rule that allows it, or None."""
        for n, (methods, condition, real, here, _) in enumerate(self.rules):
            if call[0].split()[0] not in methods:
                continue
            names = {'call': call, 'args': call[1:], 'theirs': theirs, 'ours': ours, 'sizes': sizes}
            if all(w == '*' or json.loads(w) == a for w, a in ((real, theirs), (here, ours))) and (
                    condition == '*' or eval(condition, {'json': json}, names)):
                self.used[n] += 1
                return n
        return None

    def unused(self):
        return [rule for n, rule in enumerate(self.rules) if not self.used[n]]


def keys_of(call):
    """Keys that a call names."""
    if len(call) < 2:
        return []
    first = call[1]
    return [k for k in (first if isinstance(first, list) else [first]) if isinstance(k, str) and k]


class Comparison:
    def __init__(self, real, ours, differences):
        self.real, self.ours, self.differences = real, ours, differences

    def both(self, call):
        self.real.ask(call)
        self.ours.ask(call)
        return self.real.take(), self.ours.take()

    def differs(self, call):
        """What both answered, when it is another answer that is not allowed."""
        theirs, ours = self.both(call)
        if theirs == ours:
            return None
        died = isinstance(theirs, str) and theirs.startswith('DIED')
        if self.differences.explain(call, theirs, ours) is None:
            return theirs, ours
        if died:
            self.ours.restart()
        elif isinstance(self.real, Pair):
            self.both(['reset'])
        else:  # both go on from the same state
            for key in keys_of(call):
                self.both(['remove', key, True])
            if call[0] in ('register_buffer', 'unregister_buffer', 'remove_by_regex', 'remove_all'):
                self.both(['reset'])
        return None

    def shows(self, calls):
        """Whether the last of these calls differs, from the beginning."""
        self.both(['reset'])
        found = [self.differs(call) for call in calls]
        return found[-1]

    def shortest(self, calls):
        """Fewest calls, the last the same, that show it; found by leaving out ever smaller pieces."""
        calls, step = list(calls), max(len(calls) // 2, 1)
        while step:
            at = 0
            while at < len(calls) - 1:
                fewer = calls[:at] + calls[min(at + step, len(calls) - 1):]
                if self.shows(fewer):
                    calls = fewer
                else:
                    at += step
            step //= 2
        return calls


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def listens(port):
    with socket.socket() as s:
        return s.connect_ex(('127.0.0.1', port)) == 0


def real_master(venv):
    port = free_port()
    child = subprocess.Popen([f'{venv}/bin/mooncake_master', f'--rpc_port={port}',
                              f'--metrics_port={free_port()}', '--default_kv_lease_ttl=1h'],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(3000):
        if listens(port):
            return child, f'127.0.0.1:{port}'
        threading.Event().wait(0.01)
    child.kill()
    raise RuntimeError('mooncake_master does not listen')


def run(comparison, calls, words):
    """0 when nothing differs."""
    past, bad = [], 0
    for n, call in enumerate(calls):
        past.append(call)
        found = comparison.differs(call)
        if found:
            bad += 1
            print(f'call {n} of seed {words.seed} differs: theirs {str(found[0])[:1000]}, ours {str(found[1])[:1000]}')
            few = [call] if comparison.shows([call]) else comparison.shortest(past[-400:]) \
                if comparison.shows(past[-400:]) else past[-20:] + ['(not again from its beginning)']
            for c in few:
                print('   ', json.dumps(c, ensure_ascii=False)[:2000])
            sys.stdout.flush()
            if bad >= words.most:
                break
            comparison.both(['reset'])
            past = []
    for methods, condition, *_ in comparison.differences.unused():
        if not words.no_unused:
            continue
        bad += 1
        print(f'a listed difference was not seen: {" ".join(methods)} | {condition}')
    used = sum(comparison.differences.used.values())
    print(f'{n + 1} calls, seed {words.seed}: {bad} differences; {used} answers by the list')
    return bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--real', required=True)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--count', type=int, default=10_000)
    parser.add_argument('--most', type=int, default=1, help='differences to print')
    parser.add_argument('--engine', action='store_true')
    parser.add_argument('--no-unused', action='store_true', help='fail for lines that allow nothing')
    words = parser.parse_args()
    python, here = f'{words.real}/bin/python', {'MC_COMPAT': '1', 'PYTHONPATH': str(SOURCE / 'lib/python')}
    differences = Differences(HERE / f'differences{"-engine" if words.engine else ""}.txt')
    if words.engine:
        real = Pair(lambda: [Worker(python, {}, 'engine') for _ in range(2)])
        ours = Pair(lambda: [Worker(sys.executable, here, 'engine') for _ in range(2)])
        try:
            calls = operations.EngineOperations(words.seed).all(words.count)
            return 1 if run(Comparison(real, ours, differences), calls, words) else 0
        finally:
            real.close()
            ours.close()
    with mc.cluster.Cluster(nodes=0, lease_ttl='1h') as c:
        master, address = real_master(words.real)
        real = Side(lambda: [Worker(python, {}, 'store', address, str(SEGMENT))])
        ours = Side(lambda: [Worker(sys.executable, here, 'store', c.master, str(SEGMENT))])
        try:
            calls = operations.Operations(words.seed).all(words.count)
            return 1 if run(Comparison(real, ours, differences), calls, words) else 0
        finally:
            real.close()
            ours.close()
            master.kill()
            master.wait()


if __name__ == '__main__':
    sys.exit(main())
