"""Unfriendly clients and engines: unfriendly.py HTTP ADMIN-SOCKET PID [GOES [SHOW]].

A conductor at HTTP has own workers of the model `tiny`. An engine that breaks HTTP and the API in every way
joins it as the model `evil`. Each way is tried once, with what has to come of it; then all of them GOES
times in random order, after which the conductor PID has to be as large as before, with as many open files.
SHOW prints what came of each.
"""

import gzip
import json
import os
import random
import re
import socket
import sys
import threading
import time

HTTP, ADMIN, PID = sys.argv[1], sys.argv[2], int(sys.argv[3])
GOES = int(sys.argv[4]) if len(sys.argv) > 4 else 1000
SHOW = len(sys.argv) > 5
HOST, PORT = HTTP.rsplit(':', 1)
PATIENCE = 20.0

# --- the engine. The word of the prompt says how it answers.

CHUNK = {'id': 'x', 'object': 'text_completion', 'created': 1, 'model': 'evil',
         'choices': [{'index': 0, 'text': 'abc', 'finish_reason': None}]}
WHOLE = json.dumps({**CHUNK, 'usage': {'prompt_tokens': 3, 'completion_tokens': 1, 'total_tokens': 4}}).encode()
EVENT = b'data: ' + json.dumps(CHUNK).encode()
SSE = b'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n'


def with_length(body, more=b'', length=None, status=b'200 OK', kind=b'application/json'):
    n = len(body) if length is None else length
    return (b'HTTP/1.1 ' + status + b'\r\ncontent-type: ' + kind + b'\r\n' + more +
            b'content-length: ' + str(n).encode() + b'\r\n\r\n' + body)


def chunked(*parts, end=b'0\r\n\r\n'):
    return b''.join(b'%x\r\n%s\r\n' % (len(p), p) for p in parts) + end


def stream(*events, end=b'0\r\n\r\n'):
    return SSE + b'transfer-encoding: chunked\r\n\r\n' + chunked(*events, end=end)


DONE = b'data: [DONE]\n\n'
# What it sends: bytes, or a list with pauses in between (seconds). None: it resets the connection.
ANSWERS = {
    'good': with_length(WHOLE),
    'goodstream': stream(EVENT + b'\n\n', DONE),
    'html': with_length(b'<html><body>Welcome</body></html>', kind=b'text/html'),
    'crlf': stream(EVENT + b'\r\n\r\n', b'data: [DONE]\r\n\r\n'),
    'crlfcut': stream(EVENT + b'\r', b'\n\r', b'\n', b'data: [DONE]\r\n\r\n'),
    'cronly': stream(EVENT + b'\r\r', b'data: [DONE]\r\r'),
    'hugeevent': stream(b'data: {"choices":[{"index":0,"text":"' + b'y' * 3_000_000 + b'"}]}\n\n', DONE),
    'hugeline': SSE + b'transfer-encoding: chunked\r\n\r\n' + chunked(b'x' * 5_000_000),
    'nousage': with_length(json.dumps(CHUNK).encode()),
    'redirect': with_length(b'', b'location: http://127.0.0.1:1/v1/completions\r\n', status=b'307 Temporary Redirect'),
    'longlie': with_length(WHOLE, length=len(WHOLE) + 100),
    'shortlie': with_length(WHOLE, length=len(WHOLE) - 10),
    'hugelie': with_length(WHOLE, length=10**15),
    'badlength': with_length(WHOLE).replace(b'content-length: ', b'content-length: -'),
    'twolengths': with_length(WHOLE, b'content-length: 5\r\n'),
    'both': with_length(WHOLE, b'transfer-encoding: chunked\r\n'),
    'gzip': with_length(gzip.compress(WHOLE), b'content-encoding: gzip\r\n'),
    'gzipstream': SSE + b'content-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n' +
                  chunked(gzip.compress(EVENT + b'\n\n' + DONE)),
    'cutchunk': SSE + b'transfer-encoding: chunked\r\n\r\n' + b'400\r\n' + EVENT,
    'badchunk': SSE + b'transfer-encoding: chunked\r\n\r\n' + b'zz\r\n' + EVENT,
    'hugechunk': SSE + b'transfer-encoding: chunked\r\n\r\n' + b'ffffffffffffffff\r\n' + EVENT,
    'noend': stream(EVENT + b'\n\n', end=b''),
    'nodone': stream(EVENT + b'\n\n'),
    'noevents': stream(),
    'comments': stream(b': ping\n\n' * 50, EVENT + b'\n\n', DONE),
    'badjson': with_length(b'{"choices":'),
    'badutf8': with_length(WHOLE.replace(b'abc', b'\xff\xfe')),
    'nuls': with_length(b'\0' * 100),
    'empty': with_length(b''),
    'nobody': b'HTTP/1.1 204 No Content\r\n\r\n',
    'oldhttp': b'HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n' + WHOLE,
    'nolength': b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n' + WHOLE,
    'continue': b'HTTP/1.1 100 Continue\r\n\r\n' * 3 + with_length(WHOLE),
    'status999': with_length(WHOLE, status=b'999 What'),
    'status1': with_length(WHOLE, status=b'1 What'),
    'nothttp': b'SSH-2.0-OpenSSH_9.2\r\n',
    'manyheaders': with_length(WHOLE, b''.join(b'x-%d: y\r\n' % i for i in range(5000))),
    'longheader': with_length(WHOLE, b'x: ' + b'y' * 300_000 + b'\r\n'),
    'endlesshead': b'HTTP/1.1 200 OK\r\n' + b'x: y\r\n' * 100_000,
    'splitheader': with_length(WHOLE, b'retry-after: 1\r\n\tset-cookie: a\r\n', status=b'503 Busy'),
    'evilretry': with_length(b'{}', b'retry-after: ' + b'9' * 200 + b'\r\n', status=b'429 Full'),
    'error500': with_length(b'<html>oops</html>', status=b'500 Oops', kind=b'text/html'),
    'error400': with_length(b'\xff\xfe not text', status=b'400 No', kind=b'text/plain'),
    'extra': with_length(WHOLE) + with_length(WHOLE),
    'reset': None,
    'close': b'',
    'drip': [with_length(WHOLE)[:20], 0.3, with_length(WHOLE)[20:40], 0.3, with_length(WHOLE)[40:]],
}
PARTING = set()  # connections that the engine holds


class Engine(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.listener = socket.create_server(('127.0.0.1', 0), backlog=512)
        self.port = self.listener.getsockname()[1]

    def run(self):
        while True:
            s, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(s,), daemon=True).start()

    def serve(self, s):
        try:
            with s, s.makefile('rb') as lines:
                while True:
                    first = lines.readline()
                    if not first:
                        return
                    length = 0
                    while (line := lines.readline().strip()):
                        if line.lower().startswith(b'content-length:'):
                            length = int(line.split(b':')[1])
                    body = lines.read(length)
                    if not self.answer(s, first, body):
                        return
        except OSError:
            pass

    def answer(self, s, first, body):
        if b'/v1/models' in first:
            s.sendall(with_length(json.dumps({'object': 'list', 'data': [{'id': 'evil'}]}).encode()))
        elif first.startswith(b'GET'):
            s.sendall(with_length(b'', kind=b'text/plain'))
        elif b'/tokenize' in first:
            s.sendall(with_length(b'{"count":3,"max_model_len":99,"tokens":[1,2,3]}'))
        else:
            word = json.loads(body).get('prompt')
            what = ANSWERS[word]
            if what is None:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b'\1\0\0\0\0\0\0\0')
                return False
            for part in what if isinstance(what, list) else [what]:
                time.sleep(part) if isinstance(part, float) else s.sendall(part)
            # An answer whose end its length does not say ends with the connection.
            return word in ('good', 'goodstream', 'nousage', 'nobody', 'continue', 'crlf', 'nodone', 'comments')
        return True


# --- clients

def connect():
    s = socket.create_connection((HOST, int(PORT)), timeout=PATIENCE)
    return s


def read_all(s, until=None):
    """What comes until the answer is whole, the connection ends, or patience does."""
    got = b''
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            s.settimeout(max(0.01, end - time.monotonic()))
            part = s.recv(1 << 16)
        except TimeoutError:
            return got + b' <SILENCE>'
        except OSError as e:
            return got + b' <%s>' % str(e).encode()
        if not part:
            return got
        got += part
        if until and until in got:
            return got
    return got + b' <TOO LONG>'


def request(body, path='/v1/completions', more='', method='POST', length=None):
    body = body if isinstance(body, bytes) else body.encode()
    n = len(body) if length is None else length
    return (f'{method} {path} HTTP/1.1\r\nhost: {HTTP}\r\ncontent-type: application/json\r\n{more}'
            f'content-length: {n}\r\nconnection: close\r\n\r\n').encode() + body


def raw(data, *, cut=None, half=False, drip=0):
    with connect() as s:
        try:
            if drip:
                for i in range(0, len(data), drip):
                    s.sendall(data[i:i + drip])
            else:
                s.sendall(data)
            if half:
                s.shutdown(socket.SHUT_WR)
        except OSError as e:
            return read_all(s) + b' <%s>' % str(e).encode()
        if cut is not None:
            return s.recv(cut) if cut else b''
        return read_all(s)


def slow_and_refused():
    """All of a body that is refused at its head, over four seconds, and only then a look at the answer."""
    data = request(b'x' * (31 << 20))
    piece = len(data) // 8
    with connect() as s:
        for i in range(0, len(data), piece):
            s.sendall(data[i:i + piece])
            time.sleep(0.5)
        return read_all(s)


def completion(members, prompt='"x"', model='tiny'):
    return '{"model":"%s","prompt":%s%s}' % (model, prompt, ',' + members if members else '')


def evil(word, streams):
    return raw(request(completion('"max_tokens":4' + (',"stream":true' if streams else ''),
                                  json.dumps(word), 'evil')))


DEEP = '[' * 100_000
OK, BAD = (200,), (400,)
# name: (what is sent, by what, the statuses that may come)
CLIENTS = {
    'plain': (lambda: raw(request(completion(''))), OK),
    'stream': (lambda: raw(request(completion('"stream":true'))), OK),
    'drip': (lambda: raw(request(completion('')), drip=7), OK),
    # Who ends his side of the connection counts as gone: a request that nobody waits for computes nothing.
    'half closed': (lambda: raw(request(completion('')), half=True), None),
    'half closed stream': (lambda: raw(request(completion('"stream":true,"max_tokens":20')), half=True), None),
    'header of 100 kB': (lambda: raw(request(completion(''), more='x: ' + 'y' * 100_000 + '\r\n')), (431,)),
    '5000 headers': (lambda: raw(request(completion(''), more='x: y\r\n' * 5000)), (431, 200)),
    '20000 headers': (lambda: raw(request(completion(''), more='x: y\r\n' * 20000)), (431,)),
    'long path': (lambda: raw(request('', '/' + 'a' * 100_000, method='GET')), (431, 414)),
    'bad UTF-8': (lambda: raw(request(b'{"model":"tiny","prompt":"\xff\xfe"}')), BAD),
    'lone surrogate': (lambda: raw(request(completion('', r'"\ud800"'))), (400, 200)),
    'NUL in text': (lambda: raw(request(completion('', r'"a\u0000b"'))), OK),
    'byte order mark': (lambda: raw(request(b'\xef\xbb\xbf' + completion('').encode())), (400, 200)),
    'twice a key': (lambda: raw(request('{"model":"tiny","prompt":"a","prompt":"b","max_tokens":1,"max_tokens":2}')), (400, 200)),
    'deep': (lambda: raw(request(completion('"x":' + DEEP))), BAD),
    'deep prompt': (lambda: raw(request(completion('', DEEP + ']' * 100_000))), BAD),
    'deep objects': (lambda: raw(request(completion('"x":' + '{"a":' * 50_000 + '1' + '}' * 50_000))), (400, 200)),
    'negative max_tokens': (lambda: raw(request(completion('"max_tokens":-1'))), BAD),
    'zero max_tokens': (lambda: raw(request(completion('"max_tokens":0'))), BAD),
    'max_tokens 1e400': (lambda: raw(request(completion('"max_tokens":1e400'))), BAD),
    'max_tokens 1.5': (lambda: raw(request(completion('"max_tokens":1.5'))), BAD),
    'huge max_tokens': (lambda: raw(request(completion('"max_tokens":99999999999999999999'))), BAD),
    'n 1e9': (lambda: raw(request(completion('"n":1000000000'))), BAD),
    'n 0': (lambda: raw(request(completion('"n":0'))), BAD),
    'temperature NaN': (lambda: raw(request(completion('"temperature":NaN'))), BAD),
    'temperature "1"': (lambda: raw(request(completion('"temperature":"1"'))), BAD),
    'seed -2^63': (lambda: raw(request(completion('"seed":-9223372036854775808'))), OK),
    'a million stops': (lambda: raw(request(completion('"stop":["a"' + ',"a"' * 1_000_000 + ']'))), (400, 413)),
    'wide logit_bias': (lambda: raw(request(completion('"logit_bias":{' + ','.join(f'"{i}":1' for i in range(20000)) + '}'))), BAD),
    'evil regex': (lambda: raw(request(completion('"guided_regex":"(a+)+{1000}{1000}b"'))), BAD),
    'wide schema': (lambda: raw(request(completion('"guided_json":{"type":"object","properties":{' + ','.join(
        f'"p{i}":{{"type":"string"}}' for i in range(3000)) + '}}'))), (200, 400)),
    'recursive schema': (lambda: raw(request(completion(
        '"max_tokens":2,"guided_json":{"$ref":"#"}'))), BAD),
    'array body': (lambda: raw(request('[1,2]')), BAD),
    'empty body': (lambda: raw(request('')), BAD),
    'no length': (lambda: raw(f'POST /v1/completions HTTP/1.1\r\nhost: {HTTP}\r\ncontent-type: application/json\r\n\r\n'.encode(), half=True), None),
    'short body': (lambda: raw(request(completion(''), length=10)), BAD),
    'negative length': (lambda: raw(request(completion(''), length=-1)), BAD),
    'huge length': (lambda: raw(request(completion(''), length=10**15)), (413,)),
    'two lengths': (lambda: raw(request(completion(''), more='content-length: 5\r\n')), BAD),
    'length and chunks': (lambda: raw(request(completion(''), more='transfer-encoding: chunked\r\n')), BAD),
    'bad chunk': (lambda: raw(f'POST /v1/completions HTTP/1.1\r\nhost: {HTTP}\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n'.encode()), BAD),
    'folded header': (lambda: raw(request(completion(''), more='x: a\r\n b\r\n')), (400, 200)),
    'NUL in header': (lambda: raw(request(completion(''), more='x: a\0b\r\n')), BAD),
    'space before colon': (lambda: raw(request(completion(''), more='x : a\r\n')), BAD),
    'no host': (lambda: raw(b'GET /live HTTP/1.1\r\nconnection: close\r\n\r\n'), (400, 200)),
    'HTTP/2': (lambda: raw(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'), (400, 505)),
    'HTTP/0.9': (lambda: raw(b'GET /live\r\n\r\n'), BAD),
    'TLS': (lambda: raw(b'\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03' + b'a' * 200), BAD),
    'odd method': (lambda: raw(request('', '/v1/completions', method='BREW')), (400, 405, 501)),
    'bad percent': (lambda: raw(request('', '/explain/%zz%', method='GET')), (400, 404)),
    'dot dot': (lambda: raw(request('', '/v1/../admin/scale-in')), (400, 404)),
    'absolute': (lambda: raw(request('', 'http://evil.example/live', method='GET')), (400, 404, 421, 200)),
    'expect': (lambda: raw(request(completion(''), more='expect: 100-continue\r\n')), OK),
    'expects more': (lambda: raw(request(completion(''), more='expect: a-miracle\r\n')), (417, 200, 400)),
    'pipelined': (lambda: raw(request(completion('')).replace(b'connection: close\r\n', b'') * 3 + request(completion(''))), OK),
    'wrong type': (lambda: raw(request(completion('')).replace(b'application/json', b'text/plain')), (415,)),
    'leaves before the body': (lambda: raw(request(completion(''), length=500), cut=0), None),
    'leaves in the head': (lambda: raw(b'POST /v1/comp', cut=0), None),
    'leaves at once': (lambda: raw(request(completion('"max_tokens":50')), cut=0), None),
    'leaves in a stream': (lambda: raw(request(completion('"max_tokens":200,"stream":true')), cut=1), None),
    'leaves later in a stream': (lambda: raw(request(completion('"max_tokens":200,"stream":true')), cut=300), None),
    'leaves eight choices': (lambda: raw(request(completion('"max_tokens":50,"n":8,"stream":true')), cut=300), None),
    'leaves a text': (lambda: raw(request(completion('', json.dumps('word ' * 1000))), cut=0), None),
    'unknown model': (lambda: raw(request(completion('', model='nobody'))), (404,)),
    'leaves an engine': (lambda: raw(request(completion('"stream":true', '"drip"', 'evil')), cut=0), None),
    'messages of nothing': (lambda: raw(request('{"model":"tiny","messages":[]}', '/v1/chat/completions')), BAD),
    'messages of null': (lambda: raw(request('{"model":"tiny","messages":[null]}', '/v1/chat/completions')), BAD),
    'a chat in a completion': (lambda: raw(request('{"model":"tiny","messages":[]}')), BAD),
    'tokens out of range': (lambda: raw(request(completion('', '[1,2,4294967296]'))), BAD),
    'negative tokens': (lambda: raw(request(completion('', '[1,-2]'))), BAD),
    'nested prompts': (lambda: raw(request(completion('', '[[[1]]]'))), BAD),
    'empty prompt': (lambda: raw(request(completion('', '""'))), BAD),
    'null': (lambda: raw(request('null')), BAD),
    'register': (lambda: raw(request('{"instance_id":"x","url":"http://127.0.0.1:1"}', '/register')), (401, 403)),
}


def status(answer):
    found = re.match(rb'(?:HTTP/1\.1 100 [^\r]*\r\n\r\n)*HTTP/1\.1 (\d+)', answer)
    return int(found[1]) if found else 0


def memory():
    for line in open(f'/proc/{PID}/status'):
        if line.startswith('VmRSS:'):
            return int(line.split()[1]) / 1024
    raise AssertionError('no VmRSS')


def files():
    return len(os.listdir(f'/proc/{PID}/fd'))


def admin(path, body):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(ADMIN)
        s.sendall(request(body, path))
        return read_all(s)


def wait_for(what, condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def get(path):
    return raw(request('', path, method='GET'))


def idle():
    """Nothing is left of any request."""
    cluster = json.loads(get('/cluster').split(b'\r\n\r\n', 1)[1])
    # Requests that wait or run, whatever they are called.
    loads = [w.get('requests', 0) for side in ('prefill', 'decode') for w in cluster.get(side, [])]
    return not any(loads)


def show(kind, name, answer, took):
    if SHOW:
        text = answer.decode('utf-8', 'backslashreplace')
        head, _, body = text.partition('\r\n\r\n')
        print(f'{kind} {name}: {took:.2f} s {head.splitlines()[0] if head else "-"} | {len(answer)} bytes | {body[:260]!r} {text[-30:]!r}')


def main():
    engine = Engine()
    engine.start()
    at = admin('/register', json.dumps({'instance_id': 'bad', 'url': f'http://127.0.0.1:{engine.port}',
                                        'model': 'evil', 'modelname': 'evil'}))
    assert status(at) == 200, at
    wait_for('the engine is not up', lambda: status(evil('good', False)) == 200)
    wrong = []

    def go(kind, name, call, wanted):
        began = time.monotonic()
        answer = call()
        took = time.monotonic() - began
        show(kind, name, answer, took)
        if wanted is not None and status(answer) not in wanted:
            wrong.append(f'{kind} {name}: {answer[:300]!r}, want {wanted}')
        if b'<SILENCE>' in answer or b'<TOO LONG>' in answer:
            wrong.append(f'{kind} {name}: hangs: {answer[-300:]!r}')
        if status(answer) >= 400 and b'"error"' not in answer and kind == 'client' and b'\r\n\r\n' in answer:
            body = answer.split(b'\r\n\r\n', 1)[1]
            if len(body) < 5:
                wrong.append(f'{kind} {name}: no word on what is wrong: {answer!r}')

    for name, (call, wanted) in CLIENTS.items():
        go('client', name, call, wanted)
    late = slow_and_refused()
    show('client', 'slow and refused', late, 4)
    if status(late) != 413 or late.endswith(b'>'):
        wrong.append(f'client slow and refused: {late[:300]!r}, want all of a 413')
    for word in ANSWERS:
        for streams in (False, True):
            go('engine', f'{word}{" streamed" if streams else ""}', lambda w=word, s=streams: evil(w, s), None)
    assert not wrong, '\n'.join(wrong)
    assert status(get('/ready')) == 200
    everything = [call for call, _ in CLIENTS.values()]
    everything += [lambda w=w, s=s: evil(w, s) for w in ANSWERS for s in (False, True)]
    draw = random.Random(7)

    def goes(n):
        todo = [draw.choice(everything) for _ in range(n)]

        def some(calls):
            for call in calls:
                call()
        threads = [threading.Thread(target=some, args=(todo[i::4],)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    def settled():
        wait_for('requests are left', idle)
        return memory(), files()

    goes(GOES // 4)  # caches and pools fill
    before = settled()
    goes(GOES)
    end = time.monotonic() + PATIENCE
    after = settled()
    while after[1] > before[1] + 8 and time.monotonic() < end:
        after = settled()
    print(f'unfriendly: {len(CLIENTS)} clients, {len(ANSWERS)} engines, {GOES} goes: '
          f'{before[0]:.0f} MiB and {before[1]} files, then {after[0]:.0f} MiB and {after[1]} files')
    assert after[1] <= before[1] + 8, (before, after)
    assert after[0] <= before[0] + 32, (before, after)
    assert status(raw(request(completion('')))) == 200


main()
