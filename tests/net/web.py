"""What tests/net/web.sh sends to a conductor: web.py ADDRESS ADMIN-SOCKET, or web.py ADDRESS flood N."""
import http.client
import json
import select
import socket
import sys
import threading

ADDRESS = sys.argv[1]
PORT = int(ADDRESS.rsplit(':', 1)[1])


def ask(method, path, body=None, headers=None, port=PORT):
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=20)
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def check(what, got, wanted):
    if got[0] != wanted:
        sys.exit(f'{what}: status {got[0]}, want {wanted}: {got[1]}')


def registration(url):
    return json.dumps({'instance_id': 'evil', 'url': url, 'modelname': 'tiny', 'block_size': 16})


def web_page():
    """F11, F12: another site's page registers an engine, to get the prompts of users."""
    trap = socket.create_server(('127.0.0.1', 0))
    body = registration(f'http://127.0.0.1:{trap.getsockname()[1]}')
    page = {'Origin': 'http://evil.example', 'Content-Type': 'text/plain'}
    before = json.loads(ask('GET', '/cluster')[1])['nodes']
    check('a page by a name of its own', ask('POST', '/register', body, page | {'Host': 'evil.example'}), 403)
    check('the same without its origin', ask('POST', '/register', body, {'Host': 'evil.example'}), 421)
    check('a page', ask('POST', '/register', body, page), 403)
    check('a form', ask('POST', '/register', body, {'Sec-Fetch-Site': 'cross-site'}), 403)
    check('plain text', ask('POST', '/register', body, {'Content-Type': 'text/plain'}), 415)
    check('a form without a word', ask('POST', '/admin/scale-in', 'role=decode',
                                       {'Content-Type': 'application/x-www-form-urlencoded'}), 415)
    check('a page that reads', ask('GET', '/config', None, {'Host': 'evil.example'}), 421)
    check('a page that reads', ask('GET', '/config', None, {'Origin': 'http://evil.example'}), 403)
    check('a local client', ask('POST', '/register', body, {'Content-Type': 'application/json'}), 403)
    check('a local client', ask('POST', '/admin/scale-in'), 403)
    after = json.loads(ask('GET', '/cluster')[1])['nodes']
    if after != before:
        sys.exit(f'/cluster changed: {after}')
    if select.select([trap], [], [], 0)[0]:
        sys.exit('the conductor connected to the URL that a page named')


def raw(text):
    with socket.create_connection(('127.0.0.1', PORT), timeout=20) as connection:
        connection.sendall(text)
        return int(connection.recv(65536).split()[1]), text


def broken_bodies():
    """F11: what is no HTTP is 400, and what is no JSON 415 after that."""
    head = b'POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n'
    check('a size of another kind', raw(head + b'0x2\r\n{}\r\n0\r\n\r\n'), 400)
    check('a bare LF', raw(head + b'2;x\n{}\r\n0\r\n\r\n'), 400)
    check('no type', raw(head + b'2\r\n{}\r\n0\r\n\r\n'), 415)


def forward(listener, target):
    """A proxy's client as a proxy passes it on: one line more in the head."""
    client, _ = listener.accept()
    text = b''
    while b'\r\n\r\n' not in text:
        text += client.recv(65536)
    head, body = text.split(b'\r\n\r\n', 1)
    length = [int(line.split(b':')[1]) for line in head.split(b'\r\n') if line.lower().startswith(b'content-length')]
    while len(body) < sum(length):  # it may come by itself
        body += client.recv(65536)
    text = head + b'\r\n\r\n' + body
    server = socket.socket(socket.AF_UNIX if target.startswith('/') else socket.AF_INET)
    server.connect(target if target.startswith('/') else ('127.0.0.1', PORT))
    server.sendall(text.replace(b'\r\n', b'\r\nX-Forwarded-For: 192.0.2.7\r\nConnection: close\r\n', 1))
    while got := server.recv(65536):
        client.sendall(got)
    server.close()
    client.close()


def proxy(admin):
    """F13: a forwarder on this host makes nobody local."""
    for target in ('', admin):
        for method, path, body in (('POST', '/register', registration('http://127.0.0.1:1')), ('POST', '/admin/scale-in', '{}'),
                                   ('GET', '/config', None)):
            listener = socket.create_server(('127.0.0.1', 0))
            thread = threading.Thread(target=forward, args=(listener, target))
            thread.start()
            headers = {'Content-Type': 'application/json'}
            check(f'{path} by a proxy', ask(method, path, body, headers, listener.getsockname()[1]), 403)
            thread.join()
            listener.close()


def socket_serves(admin):
    connection = http.client.HTTPConnection('localhost', timeout=20)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(admin)
    connection.request('POST', '/unregister', '{"instance_id":"nobody"}')
    answer = connection.getresponse()
    check('the admin socket', (answer.status, answer.read().decode()), 404)
    connection.close()


def flood(n):
    """F9: connections that never send the byte that they announced, beside a client that does."""
    kept = http.client.HTTPConnection('127.0.0.1', PORT, timeout=20)
    kept.request('GET', '/live')
    check('a client before', (kept.getresponse().read() and 200, ''), 200)
    text = b'POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Type: application/json\r\n\r\n'
    slow = []
    for _ in range(n):
        slow.append(socket.create_connection(('127.0.0.1', PORT)))
        slow[-1].sendall(text)
    check('/live beside them', ask('GET', '/live'), 200)
    check('a request beside them', ask('POST', '/tokenize', '{"prompt":"x"}', {'Content-Type': 'application/json'}), 200)
    kept.request('GET', '/live')
    check('a client that was there before', (kept.getresponse().status, ''), 200)
    print(f'{n} connections')


if sys.argv[2] == 'flood':
    flood(int(sys.argv[3]))
else:
    web_page()
    broken_bodies()
    proxy(sys.argv[2])
    socket_serves(sys.argv[2])
