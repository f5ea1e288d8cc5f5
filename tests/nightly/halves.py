"""Stand-ins for the two halves of a pair, asked through mc-conductor: what pairs.py and mooncake_pairs.py share."""

import http.server
import json
import threading
import urllib.request


class Half(http.server.BaseHTTPRequestHandler):
    """A server of one half. Subclasses define `about` and `answer`; both return what is sent as JSON."""
    protocol_version = 'HTTP/1.1'

    def log_message(self, *_):
        pass

    def about(self):
        """The answer to a GET that is not of /v1/models."""
        return {}

    def answer(self, body):
        """The answer to a POST of `body`."""
        raise NotImplementedError

    def send(self, body):
        body = json.dumps(body).encode()
        self.send_response(200)
        self.send_header('content-type', 'application/json')
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.send({'object': 'list', 'data': [{'id': 'm'}]} if self.path == '/v1/models' else self.about())

    def do_POST(self):
        self.send(self.answer(json.loads(self.rfile.read(int(self.headers['content-length'])))))


def serve(handler, **members):
    """A server of that handler, with these members, and its URL; it ends with the process."""
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)
    for name, value in members.items():
        setattr(server, name, value)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f'http://127.0.0.1:{server.server_port}'


def post(url, body):
    """The JSON that answers this one."""
    asked = urllib.request.Request(url, json.dumps(body).encode(), {'content-type': 'application/json'})
    with urllib.request.urlopen(asked, timeout=20) as answer:
        return json.loads(answer.read())
