#!/usr/bin/env python3
"""Growing chats on two real vLLM servers behind mc-conductor: its policy kvcache against round robin, turn
and turn about. Times until the first token, what was cached, and whether the conductor knew: the tokens
that it found, beside the engine's own count, and the time that it predicted. Wants build/engines
(scripts/setup --engines). bench/run front-engines; `bench/front_engines.py --help` has the sizes."""
import argparse
import http.client
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

from vllm_servers import BLOCK, ENGINES, Front, Server, free_port, wait_for  # noqa: E402

VERSION, SKIPPED = '0.32.0', 77
ARMS = ('rr', 'kvcache')
SAID = 16  # tokens of an answer
LEARNED = 10  # requests to a server until its times are known
BLOCK_BYTES = 30 * 3 * 2 * 64 * 4 * BLOCK  # SmolLM2-135M in float32
CLOSE = 0.25  # of the time to the first token, at the median
WORDS = ('river stone paper morning engine window garden letter number winter silver market bridge '
         'forest signal harbor copper island candle meadow').split()


class Turn:
    """One answer, as the client saw it, and what the conductor knew."""

    def __init__(self):
        self.first = 0.0  # seconds until the first token
        self.prompt = self.cached = 0
        self.server, self.text, self.id = '', '', ''
        self.predicted = self.matched = self.number = None


def ask(port, model, messages):
    turn = Turn()
    body = {'model': model, 'messages': messages, 'max_tokens': SAID, 'temperature': 0, 'seed': 1, 'ignore_eos': True,
            'stream': True, 'stream_options': {'include_usage': True}}
    line = http.client.HTTPConnection('127.0.0.1', port, timeout=300)
    begun = time.monotonic()
    line.request('POST', '/v1/chat/completions', json.dumps(body), {'content-type': 'application/json'})
    answer = line.getresponse()
    if answer.status != 200:
        raise SystemExit(f'failed: {answer.status}: {answer.read(500)!r}')
    turn.server, turn.id = answer.headers['x-mc-prefill'], answer.headers['x-request-id']
    turn.predicted = float(answer.headers.get('x-mc-predicted-ttft-ms', 0)) / 1e3
    for row in answer:
        if not row.startswith(b'data: {'):
            continue
        event = json.loads(row[6:])
        for choice in event.get('choices', []):
            said = choice['delta'].get('content') or ''
            turn.first = turn.first or (time.monotonic() - begun if said else 0.0)
            turn.text += said
        if event.get('usage'):
            turn.prompt = event['usage']['prompt_tokens']
            turn.cached = (event['usage'].get('prompt_tokens_details') or {}).get('cached_tokens') or 0
    line.close()
    return turn


def explained(port, turn):
    """What the conductor took to be cached where it sent the request."""
    line = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
    line.request('GET', f'/explain/{turn.id}')
    decision = json.loads(line.getresponse().read())['decisions'][-1]
    line.close()
    turn.matched = decision['reused_tokens']


class Run:
    """All chats to their ends, from nothing cached."""

    def __init__(self, policy, servers, given):
        self.policy, self.servers, self.given = policy, servers, given
        self.turns, self.lock, self.errors = [], threading.Lock(), []
        chance = random.Random(given.seed)
        self.texts = [[' '.join(chance.choice(WORDS) for _ in range(given.words)) for _ in range(given.turns)]
                      for _ in range(given.chats)]
        self.talks = [[] for _ in range(given.chats)]
        # Each turn of a chat comes after the one before; chats take turns.
        self.queue = [(t, c) for t in range(given.turns) for c in range(given.chats)]
        self.done = {key: threading.Event() for key in self.queue}

    def play(self, folder):
        for server in self.servers:
            wait_for(f'a reset of {server.name}', lambda server=server: json.loads(
                server.ask('POST', '/reset_prefix_cache')[1] or b'{}').get('success', True), 60)
        front = Front(folder, [server.entry for server in self.servers], '--policy', self.policy, '--tokenize-wait', '2s')
        try:
            threads = [threading.Thread(target=self.lane, args=(front,)) for _ in range(self.given.at_once)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            front.process.stop()
        if self.errors:
            raise self.errors[0]

    def lane(self, front):
        try:
            while True:
                with self.lock:
                    if not self.queue or self.errors:
                        return
                    t, c = self.queue.pop(0)
                if t:
                    self.done[t - 1, c].wait()
                talk = self.talks[c]
                talk.append({'role': 'user', 'content': self.texts[c][t]})
                turn = ask(front.port, front.model, talk)
                explained(front.port, turn)
                talk.append({'role': 'assistant', 'content': turn.text})
                with self.lock:
                    turn.number = sum(other.server == turn.server for other in self.turns)
                    self.turns.append(turn)
                self.done[t, c].set()
        except BaseException as wrong:
            self.errors.append(wrong)
            for event in self.done.values():
                event.set()


def quantile(values, q):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def share(turns):
    return 100 * sum(turn.cached for turn in turns) / sum(turn.prompt for turn in turns)


def off(turns):
    """How far predictions were off, of what it took, once times are known."""
    return [abs(turn.predicted - turn.first) / turn.first for turn in turns if turn.number >= LEARNED]


def matches(turns):
    """Of those that could match, how many were matched as the engine counts, but for a block."""
    could = [turn for turn in turns if max(turn.cached, turn.matched) > 0]
    return sum(abs(turn.cached - turn.matched) <= BLOCK for turn in could), len(could)


def table(runs, given):
    rows = [f'{given.chats} chats of {given.turns} turns, {given.words} words and {SAID} tokens of answer a turn, '
            f'{given.at_once} at a time; {given.repeat} runs', '',
            '| policy | TTFT p50, s | p90, s | cached, % | found as the engine counts, but for a block | prediction off, p50 |',
            '|---|---|---|---|---|---|']
    for policy, of in runs.items():
        turns = [turn for run in of for turn in run.turns]
        first, wrong, (same, could) = [turn.first for turn in turns], off(turns), matches(turns)
        rows.append(f'| {policy} | {statistics.median(first):.2f} | {quantile(first, 0.9):.2f} | {share(turns):.1f} | '
                    f'{same} of {could} | {100 * statistics.median(wrong) if wrong else 0:.0f} % of {len(wrong)} |')
    return '\n'.join(rows)


def figure(case, value, unit, against, against_value, ratio, n, met=None):
    said = {'bench': 'front-engines', 'case': case, 'value': round(value, 4), 'unit': unit, 'against': against,
            'against_value': round(against_value, 4), 'ratio': round(ratio, 3), 'n': n, 'spread': 0.0}
    if met is not None:
        said.update(target=1.0, met=bool(met))
    print(json.dumps(said), flush=True)
    return met is not False


def figures(runs):
    """Times compare within a run. What is found is exact."""
    all_of = {policy: [turn for run in of for turn in run.turns] for policy, of in runs.items()}
    first = {policy: [turn.first for turn in turns] for policy, turns in all_of.items()}
    n = len(first['kvcache'])
    for name, of in (('p50', statistics.median), ('p90', lambda v: quantile(v, 0.9))):
        mine, theirs = of(first['kvcache']), of(first['rr'])
        figure(f'TTFT {name}', mine, 's', 'round robin', theirs, theirs / mine, n)
    mine, theirs = share(all_of['kvcache']), share(all_of['rr'])
    good = figure('cached', mine, '%', 'round robin', theirs, mine / max(theirs, 0.1), n, mine > theirs)
    for policy, turns in all_of.items():
        same, could = matches(turns)
        good &= figure(f'found as the engine counts, {policy}', same, 'requests', 'that could match', could,
                       same / max(could, 1), len(turns), same == could)
        wrong = off(turns)
        if wrong:
            median = statistics.median(wrong)
            figure(f'prediction off, {policy}', median, 'of TTFT', 'a quarter', CLOSE, CLOSE / max(median, 1e-3), len(wrong),
                   median <= CLOSE)
    return good


def start(folder, name, given):
    events, replay = free_port(), free_port()
    said = {'enable_kv_cache_events': True, 'publisher': 'zmq', 'endpoint': f'tcp://*:{events}',
            'replay_endpoint': f'tcp://*:{replay}'}
    tokens = given.chats * given.turns * (2 * given.words + SAID + 16)
    server = Server(folder, name, VERSION, None, longest=2048, kv=max(tokens // BLOCK + 2, 80) * BLOCK_BYTES, wait=False,
                    threads='1', flags=['--kv-events-config', json.dumps(said)])
    server.entry = {'instance_id': name, 'url': f'http://127.0.0.1:{server.port}', 'modelname': 'm', 'block_size': BLOCK,
                    'endpoint': f'tcp://127.0.0.1:{events}', 'replay_endpoint': f'tcp://127.0.0.1:{replay}', 'kv_group': name}
    return server


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--quick', action='store_true', help='once, chats of 4 turns')
    parser.add_argument('--chats', type=int, default=7)
    parser.add_argument('--turns', type=int)
    parser.add_argument('--words', type=int, default=80, help='of each turn')
    parser.add_argument('--at-once', type=int, default=2)
    parser.add_argument('--repeat', type=int)
    parser.add_argument('--seed', type=int, default=25)
    given = parser.parse_args()
    given.turns = given.turns or (4 if given.quick else 8)
    given.repeat = given.repeat or (1 if given.quick else 3)
    if not (ENGINES / f'vllm-{VERSION}/ready').exists() or not (ENGINES / 'smollm2-135m/ready').exists():
        print(f'skipped: no vLLM {VERSION} in {ENGINES}: scripts/setup --engines makes it', file=sys.stderr)
        return SKIPPED
    runs = {policy: [] for policy in ARMS}
    with tempfile.TemporaryDirectory(prefix='mc-bench-') as place:
        folder, servers = pathlib.Path(place), []
        try:
            servers += [start(folder, f'v{at}', given) for at in range(2)]
            for server in servers:
                server.wait()
                server.complete([5] * 500)  # what is slow the first time only
            for _ in range(given.repeat):
                for policy in ARMS:
                    run = Run(policy, servers, given)
                    run.play(folder)
                    runs[policy].append(run)
                    print(f'# {policy}: {share(run.turns):.1f} % cached', file=sys.stderr, flush=True)
        finally:
            for server in servers:
                server.process.stop()
    print(table(runs, given), file=sys.stderr, flush=True)
    return 0 if figures(runs) else 1


if __name__ == '__main__':
    sys.exit(main())
