"""Pairs of SGLang's engines: pairs.py CONDUCTOR FOLDER.

The same requests go through SGLang's two routers and through mc-conductor to the same two servers, which
keep what they get. Each must send both halves the same, with the same members and kinds of values.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.error

import halves

BOOTSTRAP = 8998
ROOM = ('bootstrap_host', 'bootstrap_port', 'bootstrap_room')
REQUESTS = {
    'a text': ('/v1/completions', {'model': 'm', 'prompt': 'hello', 'max_tokens': 7}),
    'two texts': ('/v1/completions', {'model': 'm', 'prompt': ['a', 'b'], 'max_tokens': 7}),
    'a chat': ('/v1/chat/completions', {
        'model': 'm', 'messages': [{'role': 'user', 'content': 'x'}], 'max_tokens': 7}),
}


class Half(halves.Half):
    """Half of a pair of SGLang's; its server has `name` and `seen`."""

    def about(self):
        return {'model_path': 'm', 'served_model_name': 'm', 'dp_size': 1,
                'disaggregation_mode': self.server.name}

    def answer(self, body):
        if self.path in ('/v1/completions', '/v1/chat/completions'):
            self.server.seen.append(body)
        return {'id': 'x', 'object': 'text_completion', 'created': 1, 'model': 'm',
                'choices': [{'index': 0, 'text': 'abc', 'finish_reason': 'stop',
                             'message': {'role': 'assistant', 'content': 'abc'}}],
                'usage': {'prompt_tokens': 3, 'completion_tokens': 1, 'total_tokens': 4}}


def ask(url, path, body):
    assert halves.post(url + path, body)['id'] == 'x'


@contextlib.contextmanager
def running(command, url_of, log):
    with open(log, 'w') as to, subprocess.Popen(command, stdout=to, stderr=to) as child:
        try:
            end = time.monotonic() + 60
            while True:
                assert child.poll() is None, open(log).read()
                try:
                    url = url_of(open(log).read())
                    if url:
                        ask(url, *REQUESTS['a text'])
                        break
                except (urllib.error.URLError, ConnectionError, KeyError):
                    pass
                assert time.monotonic() < end, f'{command[0]} does not serve: {open(log).read()}'
                time.sleep(0.2)
            yield url
        finally:
            child.terminate()


def shape(body):
    """What it says of the room: all but the random number."""
    def kind(value):
        return [kind(v) for v in value] if isinstance(value, list) else type(value).__name__
    return {m: kind(body[m]) if m == 'bootstrap_room' else body[m] for m in ROOM if m in body}


def rooms(body):
    return body['bootstrap_room'] if isinstance(body['bootstrap_room'], list) else [body['bootstrap_room']]


def main():
    conductor, folder = sys.argv[1:]
    (first, p), (second, d) = (halves.serve(Half, name=name, seen=[])
                               for name in ('prefill', 'decode'))
    ports = [9 + s.server_port for s in (first, second)]  # likely to be free
    router = [sys.executable, '-m', 'sglang_router.launch_router', '--pd-disaggregation',
              '--prefill', p, str(BOOTSTRAP), '--decode', d, '--host', '127.0.0.1']
    engines = os.path.join(folder, 'engines.json')
    with open(engines, 'w') as to:
        json.dump([{'instance_id': 'p', 'url': p, 'model': 'm', 'role': 'prefill', 'pair': 'sglang',
                    'bootstrap': f'http://127.0.0.1:{BOOTSTRAP}'},
                   {'instance_id': 'd', 'url': d, 'model': 'm', 'role': 'decode',
                    'pair': 'sglang'}], to)

    def ours(log):
        told = re.search(r'http (127\.0\.0\.1:\d+)', log)
        return told and 'http://' + told[1]

    ways = {
        'mini_lb': (router + ['--mini-lb', '--port', str(ports[0])],
                    lambda _: f'http://127.0.0.1:{ports[0]}'),
        'router': (router + ['--port', str(ports[1])], lambda _: f'http://127.0.0.1:{ports[1]}'),
        'mc-conductor': ([conductor, '--listen', '127.0.0.1:0', '--http', '127.0.0.1:0',
                          '--foreign-engines', engines], ours)}
    seen, used = {}, []
    for way, (command, url_of) in ways.items():
        with running(command, url_of, os.path.join(folder, way + '.log')) as url:
            for name, (path, body) in REQUESTS.items():
                first.seen.clear()
                second.seen.clear()
                ask(url, path, body)
                assert first.seen == second.seen and len(first.seen) == 1, (way, first.seen, second.seen)
                got = first.seen[0]
                if way == 'mc-conductor':  # the others write some members anew
                    rest = {m: v for m, v in got.items() if m not in ROOM}
                    assert rest == body, (name, got)
                seen[way, name] = shape(got)
                used += rooms(got)
                assert all(0 <= room < 2**63 for room in rooms(got)), (way, got)
    assert len(set(used)) == len(used), used
    for name in REQUESTS:
        # The older router sends one room for a list of texts; the engine makes more of it.
        theirs = [seen[way, name] for way in ('mini_lb', 'router')]
        assert seen['mc-conductor', name] in theirs, (name, seen)
        print(f'{name}: as {"both" if theirs[0] == theirs[1] else "the router"}: '
              f'{seen["mc-conductor", name]}')


main()
