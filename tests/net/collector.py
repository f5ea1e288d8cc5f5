"""collector.py FILE MODE: an OTLP collector. It writes its address to FILE.address, and each span that
it gets to FILE, one JSON object a line with the service's name; each body as it came is a line of
FILE.bodies. MODE slow: it never answers; rubbish:
it answers with bytes that are no HTTP."""
import http.server
import json
import sys
import threading

FILE, MODE = sys.argv[1], sys.argv[2]
NEVER = threading.Event()


class Collector(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def do_POST(self):
        body = self.rfile.read(int(self.headers['content-length']))
        if MODE == 'slow':
            NEVER.wait()
        if MODE == 'rubbish':
            self.wfile.write(b'\0\1\2 what is this\n\n')
            self.close_connection = True
            return
        assert self.path == '/v1/traces', self.path
        with open(FILE + '.bodies', 'ab') as out:
            out.write(body + b'\n')
        with open(FILE, 'a') as out:
            for group in json.loads(body)['resourceSpans']:
                names = {a['key']: a['value']['stringValue'] for a in group['resource']['attributes']}
                for scope in group['scopeSpans']:
                    for span in scope['spans']:
                        out.write(json.dumps({'service': names['service.name'], **span}) + '\n')
        self.send_response(200)
        self.send_header('content-type', 'application/json')
        self.send_header('content-length', '2')
        self.end_headers()
        self.wfile.write(b'{}')

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Collector)
server.daemon_threads = True
with open(FILE + '.address', 'w') as out:
    out.write('127.0.0.1:%d' % server.server_port)
server.serve_forever()
