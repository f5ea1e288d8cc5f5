"""A case of tests/nightly/vllm.py: mc-conductor before two servers, asked in the forms of three APIs."""
import http.client
import json

from vllm_servers import BLOCK, Front, free_port

ENDS = {'temperature': 0, 'stream': False}


class Chat:
    path = '/v1/chat/completions'

    def body(self, said):
        return {'messages': said, 'max_tokens': 16, **ENDS}

    def answer(self, reply):
        return reply['choices'][0]['message']['content']

    def counts(self, usage):
        return usage['prompt_tokens'], (usage.get('prompt_tokens_details') or {}).get('cached_tokens') or 0

    def said(self, text):
        return {'role': 'assistant', 'content': text}


class Messages(Chat):
    path = '/v1/messages'

    def body(self, said):
        number = sum(len(str(one)) for one in said)  # another one in every request
        system = [f'x-anthropic-billing-header: cch={number};', 'You help. ', 'Be brief.']
        return {'system': [{'type': 'text', 'text': text} for text in system], 'messages': said, 'max_tokens': 16, **ENDS}

    def answer(self, reply):
        return ''.join(block['text'] for block in reply['content'] if block['type'] == 'text')

    def counts(self, usage):
        cached = usage.get('cache_read_input_tokens') or 0
        return usage['input_tokens'] + cached + (usage.get('cache_creation_input_tokens') or 0), cached

    def said(self, text):
        return {'role': 'assistant', 'content': [{'type': 'text', 'text': text}]}


class Responses(Chat):
    path = '/v1/responses'

    def body(self, said):
        return {'instructions': 'Be brief.', 'input': said, 'max_output_tokens': 16, 'store': False, **ENDS}

    def answer(self, reply):
        return ''.join(part['text'] for item in reply['output'] if item['type'] == 'message' for part in item['content'])

    def counts(self, usage):
        return usage['input_tokens'], (usage.get('input_tokens_details') or {}).get('cached_tokens') or 0

    def said(self, text):
        return {'type': 'message', 'id': 'msg_1', 'status': 'completed', 'role': 'assistant',
                'content': [{'type': 'output_text', 'text': text, 'annotations': []}]}


def ask(port, method, path, body=None):
    line = http.client.HTTPConnection('127.0.0.1', port, timeout=300)
    line.request(method, path, None if body is None else json.dumps(body), {'content-type': 'application/json'})
    reply = line.getresponse()
    text = reply.read()
    line.close()
    if reply.status != 200:
        raise SystemExit(f'failed: {path} answers {reply.status}: {text[:500]!r}')
    return json.loads(text), reply.headers


def server(test, name):
    events, replay = free_port(), free_port()
    said = {'enable_kv_cache_events': True, 'publisher': 'zmq', 'endpoint': f'tcp://*:{events}',
            'replay_endpoint': f'tcp://*:{replay}'}
    out = test.server(name, None, flags=['--kv-events-config', json.dumps(said)])
    out.entry = {'instance_id': name, 'url': f'http://127.0.0.1:{out.port}', 'modelname': 'm', 'block_size': BLOCK,
                 'endpoint': f'tcp://127.0.0.1:{events}', 'replay_endpoint': f'tcp://127.0.0.1:{replay}', 'kv_group': name}
    return out


def case_front(test, chance):
    """mc-conductor before two servers: chats, messages and responses go where their prompts are, and it knew."""
    servers = [server(test, name) for name in ('front0', 'front1')]
    front = Front(test.folder, [one.entry for one in servers], '--policy', 'kvcache', '--tokenize-wait', '2s')
    test.running.append(front.process)
    words = 'river stone paper morning engine window garden letter number winter silver market bridge'.split()
    for form in (Chat(), Messages(), Responses()):
        talks = [[] for _ in range(3)]
        before, found = [0] * len(talks), 0
        for turn in range(3):
            for number, said in enumerate(talks):
                text = ' '.join(chance.choice(words) for _ in range(80))
                said.append({'role': 'user', 'content': text})
                reply, headers = ask(front.port, 'POST', form.path, {'model': front.model, **form.body(said)})
                explained, _ = ask(front.port, 'GET', f'/explain/{headers["x-request-id"]}')
                decision = explained['decisions'][-1]
                knew = decision['reused_tokens']
                prompt, cached = form.counts(reply['usage'])
                test.check(abs(knew - cached) <= BLOCK,
                           f'{form.path} turn {turn} of {number}: {cached} of {prompt} tokens were cached, it knew of {knew}')
                found += turn > 0 and cached >= (before[number] - 1) // BLOCK * BLOCK - BLOCK
                before[number] = prompt
                said.append(form.said(form.answer(reply)))
        # Where times were learned from a busy machine, another server may be predicted to be sooner.
        test.check(found >= 4, f'{form.path}: {found} of 6 turns went where the one before had been')
    front.process.stop()
    for one in servers:
        one.process.stop()
