"""The clients that people use, against a conductor: clients.py URL ADMIN_SOCKET [CASE...].

Own workers serve the model `tiny`. An external engine, made here, serves `other` with what own workers
do not have: embeddings, Anthropic's messages, responses, tool calls.
"""

import http.client
import http.server
import json
import os
import socket
import sys
import threading
import time
import traceback

os.environ.setdefault('LITELLM_LOCAL_MODEL_COST_MAP', 'True')

TOOL = {'type': 'function', 'function': {
    'name': 'weather', 'description': 'of a town',
    'parameters': {'type': 'object', 'properties': {'town': {'type': 'string'}}}}}
USAGE = {'prompt_tokens': 5, 'completion_tokens': 2, 'total_tokens': 7}


class Engine(http.server.BaseHTTPRequestHandler):
    """Answers as the real APIs do; `seen` keeps the requests."""
    protocol_version = 'HTTP/1.1'
    seen = []

    def log_message(self, *_):
        pass

    def send(self, body, kind='application/json'):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(200)
        self.send_header('content-type', kind)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.send({'object': 'list', 'data': [{'id': 'org/other', 'object': 'model'}]}
                  if self.path == '/v1/models' else {})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers['content-length'])))
        self.seen.append((self.path, asked, dict(self.headers)))
        answer = {'/v1/embeddings': self.answer_embeddings, '/v1/messages': self.answer_messages,
                  '/v1/responses': self.answer_responses, '/v1/chat/completions': self.answer_chat}
        if self.path not in answer:
            self.send_response(404)
            self.send_header('content-length', '0')
            return self.end_headers()
        return answer[self.path](asked)

    def answer_embeddings(self, asked):
        texts = asked['input'] if isinstance(asked['input'], list) else [asked['input']]
        self.send({'object': 'list', 'model': 'org/other', 'usage': USAGE, 'data': [
            {'object': 'embedding', 'index': i, 'embedding': [0.5, i]} for i in range(len(texts))]})

    def answer_messages(self, asked):
        whole = {'id': 'msg_1', 'type': 'message', 'role': 'assistant', 'model': 'org/other',
                 'content': [{'type': 'text', 'text': 'hello'}], 'stop_reason': 'end_turn',
                 'stop_sequence': None, 'usage': {'input_tokens': 5, 'output_tokens': 2}}
        if not asked.get('stream'):
            return self.send(whole)
        events = [
            {'type': 'message_start', 'message': {**whole, 'content': []}},
            {'type': 'content_block_start', 'index': 0, 'content_block': {'type': 'text', 'text': ''}},
            {'type': 'content_block_delta', 'index': 0, 'delta': {'type': 'text_delta', 'text': 'hel'}},
            {'type': 'content_block_delta', 'index': 0, 'delta': {'type': 'text_delta', 'text': 'lo'}},
            {'type': 'content_block_stop', 'index': 0},
            {'type': 'message_delta', 'delta': {'stop_reason': 'end_turn', 'stop_sequence': None},
             'usage': {'output_tokens': 2}},
            {'type': 'message_stop'}]
        return self.send(''.join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n"
                                 for e in events).encode(), 'text/event-stream')

    def answer_responses(self, _):
        self.send({'id': 'resp_1', 'object': 'response', 'created_at': 1, 'status': 'completed',
                   'model': 'org/other', 'parallel_tool_calls': True, 'tool_choice': 'auto', 'tools': [],
                   'output': [{'id': 'm', 'type': 'message', 'role': 'assistant', 'status': 'completed',
                               'content': [{'type': 'output_text', 'text': 'hi', 'annotations': []}]}]})

    def answer_chat(self, asked):
        call = {'id': 'c1', 'type': 'function', 'function': {'name': 'weather', 'arguments': '{"town":"x"}'}}
        message = {'role': 'assistant', 'content': None, 'tool_calls': [call]} if 'tools' in asked else \
            {'role': 'assistant', 'content': 'hello'}
        self.send({'id': 'x', 'object': 'chat.completion', 'created': 1, 'model': 'org/other',
                   'usage': USAGE, 'choices': [{'index': 0, 'message': message,
                                                'finish_reason': 'tool_calls' if 'tools' in asked else 'stop'}]})


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__('mc')
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def register(admin):
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Engine)
    server.handle_error = lambda *_: None  # who left, left
    threading.Thread(target=server.serve_forever, daemon=True).start()
    body = json.dumps({'instance_id': 'other', 'url': f'http://127.0.0.1:{server.server_port}',
                       'model': 'other', 'modelname': 'org/other'})
    c = UnixConnection(admin)
    c.request('POST', '/register', body, {'content-type': 'application/json'})
    answer = c.getresponse()
    assert answer.status == 200, answer.read()


def raises(kind, call):
    try:
        call()
    except kind as e:
        return e
    raise AssertionError(f'{kind.__name__} was not raised')


def openai_client(url):
    import openai
    return openai, openai.OpenAI(base_url=url + '/v1', api_key='none', max_retries=0)


def case_openai_models(url):
    openai, client = openai_client(url)
    assert {m.id for m in client.models.list()} >= {'tiny', 'other'}
    assert client.models.retrieve('tiny').id == 'tiny'
    raises(openai.NotFoundError, lambda: client.models.retrieve('none'))


def case_openai_completions(url):
    openai, client = openai_client(url)
    whole = client.completions.create(model='tiny', prompt='hello', max_tokens=5, temperature=0, seed=1,
                                      extra_body={'ignore_eos': True})
    assert whole.usage.completion_tokens == 5 and whole.choices[0].finish_reason == 'length', whole
    stream = list(client.completions.create(
        model='tiny', prompt='hello', max_tokens=5, temperature=0, seed=1, stream=True,
        stream_options={'include_usage': True}, extra_body={'ignore_eos': True}))
    assert ''.join(c.choices[0].text for c in stream if c.choices) == whole.choices[0].text
    assert stream[-1].usage.completion_tokens == 5
    e = raises(openai.BadRequestError, lambda: client.completions.create(
        model='tiny', prompt='x', max_tokens=1, suffix='y'))
    assert e.param == 'suffix', e
    e = raises(openai.NotFoundError, lambda: client.completions.create(model='none', prompt='x'))
    assert e.code == 'model_not_found', e


def case_openai_chats(url):
    _, client = openai_client(url)
    messages = [{'role': 'system', 'content': 'be brief'}, {'role': 'user', 'content': 'hello'}]
    whole = client.chat.completions.create(model='tiny', messages=messages, max_tokens=4, temperature=0)
    assert whole.choices[0].message.role == 'assistant' and whole.model == 'tiny', whole
    several = client.chat.completions.create(model='tiny', messages=messages, max_tokens=4, n=3,
                                             logprobs=True, top_logprobs=2)
    assert [c.index for c in several.choices] == [0, 1, 2], several
    first = several.choices[0].logprobs.content[0]
    assert first.logprob <= 0 and len(first.top_logprobs) == 2, first
    text = ''
    for chunk in client.chat.completions.create(model='tiny', messages=messages, max_tokens=4,
                                                temperature=0, stream=True):
        assert chunk.model == 'tiny'
        text += chunk.choices[0].delta.content or ''
    assert text == whole.choices[0].message.content, (text, whole)


def case_openai_engine(url):
    openai, client = openai_client(url)
    answer = client.chat.completions.create(
        model='other', messages=[{'role': 'user', 'content': 'weather?'}], tools=[TOOL])
    assert answer.model == 'other' and answer.choices[0].message.tool_calls[0].function.name == 'weather'
    path, asked, _ = Engine.seen[-1]
    assert asked['tools'] == [TOOL] and asked['model'] == 'org/other', asked
    vectors = client.embeddings.create(model='other', input=['a', 'b'], encoding_format='float')
    assert [list(v.embedding) for v in vectors.data] == [[0.5, 0], [0.5, 1]], vectors
    assert client.responses.create(model='other', input='x').output_text == 'hi'
    raises(openai.APIStatusError, lambda: client.embeddings.create(model='tiny', input='x'))


def case_openai_tools_own(url):
    """tiny has no chat template: its own workers say so, by name."""
    openai, client = openai_client(url)
    e = raises(openai.BadRequestError, lambda: client.chat.completions.create(
        model='tiny', messages=[{'role': 'user', 'content': 'x'}], tools=[TOOL]))
    assert e.param == 'tools', e


def case_openai_responses_own(url):
    openai, client = openai_client(url)
    ask = {'model': 'tiny', 'input': 'hello', 'instructions': 'be brief', 'max_output_tokens': 5,
           'temperature': 0, 'extra_body': {'ignore_eos': True}}
    whole = client.responses.create(**ask)
    assert whole.status == 'incomplete' and whole.usage.output_tokens == 5, whole
    assert whole.incomplete_details.reason == 'max_output_tokens', whole
    kinds, text = [], ''
    for event in client.responses.create(**ask, stream=True):
        kinds.append(event.type)
        text += event.delta if event.type == 'response.output_text.delta' else ''
    assert kinds[0] == 'response.created' and kinds[-1] == 'response.incomplete', kinds
    assert text == whole.output_text, (text, whole.output_text)
    with client.responses.stream(**ask) as stream:
        assert ''.join(e.delta for e in stream if e.type == 'response.output_text.delta') == text
    e = raises(openai.BadRequestError, lambda: client.responses.create(
        **ask, previous_response_id='resp_1'))
    assert e.param == 'previous_response_id', e


def case_openai_async(url):
    import asyncio
    import openai

    async def many():
        async with openai.AsyncOpenAI(base_url=url + '/v1', api_key='none', max_retries=0) as client:
            return await asyncio.gather(*(client.completions.create(
                model='tiny', prompt=[i, 2, 3], max_tokens=3) for i in range(1, 51)))
    answers = asyncio.run(many())
    assert len(answers) == 50 and len({a.id for a in answers}) == 50


def case_anthropic(url):
    import anthropic
    client = anthropic.Anthropic(base_url=url, api_key='none', max_retries=0)
    ask = {'model': 'other', 'max_tokens': 10, 'messages': [{'role': 'user', 'content': 'hello'}]}
    whole = client.messages.create(**ask)
    assert whole.content[0].text == 'hello' and whole.model == 'other', whole
    with client.messages.stream(**ask) as stream:
        assert ''.join(stream.text_stream) == 'hello'
        assert stream.get_final_message().model == 'other'
    _, _, headers = Engine.seen[-1]
    assert 'anthropic-version' in {h.lower() for h in headers}, headers
    raises(anthropic.NotFoundError, lambda: client.messages.create(**{**ask, 'model': 'none'}))


def case_anthropic_own(url):
    import anthropic
    client = anthropic.Anthropic(base_url=url, api_key='none', max_retries=0)
    ask = {'model': 'tiny', 'max_tokens': 5, 'system': 'be brief',
           'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': 'hello'}]}],
           'extra_body': {'ignore_eos': True, 'temperature': 0}}
    whole = client.messages.create(**ask)
    assert whole.stop_reason == 'max_tokens' and whole.usage.output_tokens == 5, whole
    with client.messages.stream(**ask) as stream:
        text = ''.join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text and final.stop_reason == 'max_tokens', (text, whole)
    assert final.usage.output_tokens == 5, final
    counted = client.messages.count_tokens(model='tiny', system='be brief', messages=ask['messages'])
    assert counted.input_tokens == final.usage.input_tokens + final.usage.cache_read_input_tokens, counted
    e = raises(anthropic.BadRequestError, lambda: client.messages.create(
        **ask, thinking={'type': 'enabled', 'budget_tokens': 1024}))
    assert 'thinking' in e.message, e


def case_litellm(url):
    import litellm
    litellm.suppress_debug_info = True
    ask = {'api_base': url + '/v1', 'api_key': 'none', 'max_retries': 0,
           'messages': [{'role': 'user', 'content': 'hello'}]}
    whole = litellm.completion(model='openai/tiny', max_tokens=4, temperature=0, **ask)
    assert whole.usage.completion_tokens >= 1, whole
    stream = litellm.completion(model='openai/tiny', max_tokens=4, temperature=0, stream=True, **ask)
    text = ''.join(chunk.choices[0].delta.content or '' for chunk in stream)
    assert text == (whole.choices[0].message.content or ''), (text, whole)
    assert litellm.completion(model='openai/other', **ask).choices[0].message.content == 'hello'
    raises(litellm.NotFoundError, lambda: litellm.completion(model='openai/none', **ask))


def case_langchain(url):
    try:
        from langchain_openai import ChatOpenAI, OpenAIEmbeddings
    except ImportError:
        print('langchain: not installed: remove build/clients, and scripts/setup --clients makes it anew')
        return
    where = {'base_url': url + '/v1', 'api_key': 'none', 'max_retries': 0}
    chat = ChatOpenAI(model='tiny', max_tokens=6, temperature=0, seed=1, **where)
    whole = chat.invoke('hello')
    assert 1 <= whole.usage_metadata['output_tokens'] <= 6, whole
    assert ''.join(piece.content for piece in chat.stream('hello')) == whole.content
    call, = ChatOpenAI(model='other', **where).bind_tools([TOOL]).invoke('hello').tool_calls
    assert call['name'] == 'weather' and call['args'] == {'town': 'x'}, call
    vectors = OpenAIEmbeddings(model='other', check_embedding_ctx_length=False, **where).embed_documents(['a', 'b'])
    assert [v[1] for v in vectors] == [0, 1], vectors


def main():
    url, admin, *chosen = sys.argv[1:]
    register(admin)
    for _ in range(300):
        with __import__('urllib.request').request.urlopen(url + '/cluster') as answer:
            if any(n['name'] == 'other' and n['up'] for n in json.load(answer)['nodes']):
                break
        time.sleep(0.1)
    bad = []
    for name in [n for n in globals() if n.startswith('case_')]:
        if chosen and name[5:] not in chosen:
            continue
        begun = time.monotonic()
        try:
            globals()[name](url)
            print(f'{name[5:]}: ok, {time.monotonic() - begun:.1f} s', flush=True)
        except Exception:
            bad.append(name[5:])
            traceback.print_exc()
    sys.exit(f'failed: {", ".join(bad)}' if bad else 0)


main()
