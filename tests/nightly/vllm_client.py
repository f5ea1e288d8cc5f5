"""What a client and an operator see of a server: streamed answers, counters, CPU time and memory."""

import http.client
import json
import os
import pathlib
import re
import time


class Failed(Exception):
    """No whole answer: not reached, refused, or cut."""


class Reply:
    """A streamed answer. Times are of time.monotonic()."""

    def __init__(self):
        self.tokens, self.gaps = [], []  # gap: of the two best logprobs
        self.first, self.cached = 0.0, 0


def stream(host, port, prompt, count, **more):
    """The answer of `count` tokens to a list of tokens, greedy."""
    body = {'model': 'm', 'prompt': prompt, 'max_tokens': count, 'temperature': 0, 'logprobs': 2, 'seed': 1,
            'ignore_eos': True, 'stream': True, 'stream_options': {'include_usage': True},
            'return_tokens_as_token_ids': True, **more}
    line = http.client.HTTPConnection(host, port, timeout=300)
    try:
        line.request('POST', '/v1/completions', json.dumps(body), {'content-type': 'application/json'})
        answer = line.getresponse()
        if answer.status != 200:
            raise Failed(f'{answer.status}: {answer.read(300)!r}')
        out = _events(answer)
    except (OSError, http.client.HTTPException, ValueError) as wrong:
        raise Failed(str(wrong)) from wrong
    finally:
        line.close()
    if len(out.tokens) != count:
        raise Failed(f'{len(out.tokens)} of {count} tokens')
    return out


def _events(answer):
    out = Reply()
    for line in answer:
        if not line.startswith(b'data: {'):
            continue
        event = json.loads(line[6:])
        if 'error' in event:
            raise Failed(str(event['error']))
        for choice in event.get('choices', []):
            said = choice.get('logprobs')
            if not said or not said['tokens']:
                continue
            out.first = out.first or time.monotonic()
            out.tokens += [int(token.rpartition(':')[2]) for token in said['tokens']]
            for top in said['top_logprobs']:
                best = sorted(top.values())[-2:]
                out.gaps.append(best[-1] - best[0] if len(best) > 1 else 1e9)
        if event.get('usage'):
            details = event['usage'].get('prompt_tokens_details') or {}
            out.cached = details.get('cached_tokens') or 0
    return out


class Counters:
    """What /metrics said."""

    def __init__(self, text):
        self.values = {}  # name and labels -> value
        for line in text.decode().splitlines():
            if line and not line.startswith('#'):
                key, value = line.rsplit(' ', 1)
                name, _, labels = key.partition('{')
                self.values[name, labels] = float(value)

    def less(self, before):
        """What was counted since."""
        out = Counters(b'')
        out.values = {key: value - before.values.get(key, 0.0) for key, value in self.values.items()}
        return out

    def get(self, name, label=''):
        """The sum over what has the label: 'code="timeout"'."""
        return sum(value for (of, labels), value in self.values.items() if of == name and label in labels)

    @staticmethod
    def quantile(several, name, q):
        """The upper bound of the bucket of a histogram that so many observations are below."""
        sums = {}
        for one in several:
            for (of, labels), value in one.values.items():
                if of == name + '_bucket':
                    bound = float(re.search(r'le="([^"]+)"', labels)[1])
                    sums[bound] = sums.get(bound, 0.0) + value
        wanted = q * max(sums.values(), default=0.0)
        return next((bound for bound in sorted(sums) if wanted and sums[bound] >= wanted), float('nan'))


def used(*processes):
    """CPU seconds, and bytes of memory at most, of processes of tests.nightly.vllm_servers and what
    they started. Pages that several map count in each."""
    sessions, ticks, most = {process.child.pid for process in processes}, 0, 0
    for entry in pathlib.Path('/proc').iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / 'stat').read_text().rpartition(')')[2].split()
            if int(fields[3]) not in sessions:
                continue
            ticks += int(fields[11]) + int(fields[12])
            for line in (entry / 'status').read_text().splitlines():
                if line.startswith('VmHWM:'):
                    most += int(line.split()[1]) << 10
        except OSError:
            continue  # it has ended
    return ticks / os.sysconf('SC_CLK_TCK'), most
