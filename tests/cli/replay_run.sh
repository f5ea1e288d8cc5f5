#!/usr/bin/env bash
# mc-replay run: what it refuses before it sends anything, and how it exits.
. "$(dirname "$0")/../common.inc"
replay=$MC_BIN/mc-replay
echo '{"timestamp": 0, "input_length": 10, "output_length": 2, "hash_ids": [0]}' >"$T/trace.jsonl"
nobody=http://127.0.0.1:1

said() { grep -qF -- "$1" "$T/err" || die "stderr lacks '$1': $(cat "$T/err")"; }

# No server: it waits as long as asked, then says what it saw.
expect 3 "$replay" run "$T/trace.jsonl" --url $nobody --wait-ready 200ms
said "$nobody is not ready after 200ms: connect to 127.0.0.1:1: Connection refused"
[ ! -s "$T/out" ] || die "a report without a run: $(cat "$T/out")"

# Wrong words, found before the server sees a request.
expect 2 "$replay" run --url $nobody
said 'no trace'
expect 2 "$replay" run "$T/trace.jsonl" --url $nobody --sped 2
said speed
expect 2 "$replay" run "$T/trace.jsonl" --url $nobody --speed -1
said '--speed is -1: want a number above 0, or 0 for all at once'
expect 2 "$replay" run "$T/trace.jsonl" --url $nobody --arrival sometimes
said "arrival 'sometimes'"
expect 2 "$replay" run "$T/trace.jsonl" --url $nobody --arrival poisson
said --qps
for flag in '--qps 3' '--speed 2' '--speed 0'; do
  expect 2 "$replay" run "$T/trace.jsonl" --url $nobody --concurrency 4 $flag
  said "--concurrency 4 and $flag both set when requests are sent"
done
expect 2 "$replay" run "$T/trace.jsonl" --url $nobody --window 5:1
said window
expect 2 "$replay" run "$T/trace.jsonl" --url $nobody --require 'speed of light'
said 'speed of light'
expect 2 "$replay" run "$T/trace.jsonl" --url $nobody --prompt voice
expect 2 "$replay" run "$T/trace.jsonl" --url $nobody --timeout 5
expect 2 "$replay" run "$T/trace.jsonl" --url https://127.0.0.1:1
said 'http://host:port'

# Files that cannot be written, or are needed, are found then too; $nobody would be status 3.
said_of() { # FLAG PATH WORDS
  expect 2 "$replay" run "$T/trace.jsonl" --url $nobody "$1" "$2"
  said "$1 $2$3"
}
for flag in --report --requests; do
  said_of $flag "$T/absent/r.json" ': create'
  said_of $flag "$T/trace.jsonl/r.json" ': create'
  said_of $flag "$T" ' is a folder'
  said_of $flag "$T/trace.jsonl" ' is the trace'
  ln -sf trace.jsonl "$T/link"
  said_of $flag "$T/link" ' is the trace'
done
ln -s new.json "$T/to-new"
for other in "$T/new.json" "$T/./new.json" "$T/to-new"; do
  expect 2 "$replay" run "$T/trace.jsonl" --url $nobody --report "$T/new.json" --requests "$other"
  said "--requests $other is the file of --report too"
done
[ ! -e "$T/new.json" ] || die "a file of a run that did not begin"
rm "$T/to-new" "$T/link"
expect 3 "$replay" run "$T/trace.jsonl" --url $nobody --wait-ready 1ms --report /dev/stdout --requests /dev/stdout
[ -z "$(find "$T" -name '*.tmp')" ] || die "a check leaves its files: $(ls "$T")"

# Traces that are not there, or not traces.
expect 1 "$replay" run "$T/absent.jsonl" --url $nobody
said absent.jsonl
echo nonsense >"$T/bad.jsonl"
expect 2 "$replay" run "$T/bad.jsonl" --url $nobody
said bad.jsonl
gzip -c "$T/trace.jsonl" >"$T/trace.jsonl.gz"
expect 2 "$replay" run "$T/trace.jsonl.gz" --url $nobody
said "trace $T/trace.jsonl.gz is packed by gzip"

# Against a server that is not ours: plain python. It serves until its stdin ends.
cat >"$T/server.py" <<'PY'
import http.server, json, os, sys, threading
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def log_message(self, *args): pass
    def plain(self, status, body, headers={}):
        data = json.dumps(body).encode()
        self.send_response(status)
        for item in headers.items(): self.send_header(*item)
        self.send_header('Content-Length', str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        if self.path == '/v1/models': return self.plain(200, {'data': [{'id': 'external'}]})
        self.plain(404, {})
    def event(self, text):
        data = f'data: {text}\n\n'.encode()
        self.wfile.write(b'%x\r\n%s\r\n' % (len(data), data))
        self.wfile.flush()
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        if asked['max_tokens'] == 429: return self.plain(429, {'error': {'code': 'full'}})
        self.send_response(200)
        self.send_header('Content-Type', 'text/event-stream')
        self.send_header('Transfer-Encoding', 'chunked')
        self.end_headers()
        for i in range(asked['max_tokens']):
            if i == 1 and asked['max_tokens'] == 777: # never ends
                open(sys.argv[1] + '.stalled', 'w').close()
                threading.Event().wait()
            if i == 500: return self.event('{"error": {"message": "engine lost"}}') or self.end()
            self.event(json.dumps({'choices': [{'text': 'x', 'finish_reason': None}]}))
        self.event(json.dumps({'choices': [], 'usage': {'completion_tokens': asked['max_tokens'],
            'prompt_tokens_details': {'cached_tokens': 5}}}))
        self.event('[DONE]')
        self.end()
    def end(self): self.wfile.write(b'0\r\n\r\n')
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
with open(sys.argv[1] + '.new', 'w') as f: f.write(str(server.server_port))
os.rename(sys.argv[1] + '.new', sys.argv[1])
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
os._exit(0)
PY
mkfifo "$T/hold"
python3 "$T/server.py" "$T/port" <"$T/hold" &
exec 9>"$T/hold"
there() { until_true 30 "$1 does not appear" test -e "$1"; }
there "$T/port"
url=http://127.0.0.1:$(cat "$T/port")
line() { echo "{\"timestamp\": $1, \"input_length\": 700, \"output_length\": $2, \"hash_ids\": [0, $1]}"; }

for i in $(seq 0 10 200); do line "$i" 8; done >"$T/good.jsonl"
expect 0 "$replay" run "$T/good.jsonl" --url "$url" --max-lag 30s --ttft-slo 10s --require 'ok==21' \
  --output json --report "$T/report.md" --requests "$T/requests.jsonl" --gaps --progress
grep -q 'sent 21/21  ok 21' "$T/err" || die "no progress on stderr: $(cat "$T/err")"
grep -q '^TTFT' "$T/report.md" || die "no report in report.md"
python3 - "$T/out" "$T/requests.jsonl" <<'PY' || die "the report is not what it should be"
import json, sys
report = json.load(open(sys.argv[1]))
requests = [json.loads(line) for line in open(sys.argv[2])]
assert report['schema'] == 'mc-replay/1' and report['requests']['ok'] == 21, report
assert report['cluster']['model'] == 'external' and report['cache']['hit_tokens'] == 105, report
assert report['requests']['within_slo'] == 21 and report['kv_errors'] is None, report
assert len(requests) == 21 and all(len(r['gaps_ms']) == 7 and r['output'] == 8 for r in requests)
assert [r['t_intended_ms'] for r in requests] == [10.0 * i for i in range(21)]
PY
expect 5 "$replay" run "$T/good.jsonl" --url "$url" --max-lag 30s --require 'hit-tokens>105'
grep -q '^require .*FAIL' "$T/out" || die "the failed gate is not shown"
expect 6 "$replay" run "$T/good.jsonl" --url "$url" --max-lag 1ns
said --max-lag
expect 0 "$replay" run "$T/good.jsonl" --url "$url" --concurrency 2 --limit 6 --max-lag 30s \
  --report "$T/run.html"
for chart in ttft-time ttft-share tbt-time hits queues rates; do
  grep -q "<figure id=\"$chart\">" "$T/run.html" || die "the page has no chart $chart"
done
grep -q 'closed loop, 2 at a time' "$T/out" || die "the report does not say that the loop is closed"

line 0 429 >"$T/refused.jsonl"
expect 0 "$replay" run "$T/refused.jsonl" --url "$url" --max-lag 30s
grep -q 'full' "$T/out" || die "the reason of the refusal is not shown"
grep -q 'hits unknown: no request succeeded' "$T/out" || die "no hits without an answer: $(cat "$T/out")"
# The hits that were within reach are those of the requests that the hits are of.
{ line 0 8; line 1 8; for i in $(seq 2 30); do line "$i" 429; done; } >"$T/some.jsonl"
expect 0 "$replay" run "$T/some.jsonl" --url "$url" --max-lag 30s --output json
jq -e '.requests.ok == 2 and .cache.reachable_hit_tokens == 512 and
  .cache.reachable_ratio_tokens == 512 / 1400' "$T/out" >/dev/null || die "the hits within reach: $(cat "$T/out")"
{ line 0 8; line 1 501; } >"$T/broken.jsonl"
expect 1 "$replay" run "$T/broken.jsonl" --url "$url" --max-lag 30s
grep -q 'engine lost' "$T/out" || die "the reason of the failure is not shown"

# Interrupted, it stops sending, cancels what is under way and reports what there was.
{ line 0 777; line 3600000 8; } >"$T/long.jsonl"
"$replay" run "$T/long.jsonl" --url "$url" --max-lag 30s --report "$T/part.json" >"$T/out" 2>"$T/err" &
pid=$!
there "$T/port.stalled"
kill -TERM $pid
status=0
wait $pid || status=$?
[ $status = 1 ] || die "interrupted: exit $status: $(cat "$T/err")"
grep -q '^requests *1 sent .* 1 cancelled' "$T/out" || die "no report of the part: $(cat "$T/out")"
grep -q '^stopped *by a signal: 1 of 2 requests were sent' "$T/out" || die "no word of the signal: $(cat "$T/out")"
said 'stopped by a signal: 1 of 2 requests were sent'
jq -e '.interrupted and .requests.sent == 1 and .trace.requests == 2' "$T/part.json" >/dev/null ||
  die "the report of the part: $(cat "$T/part.json")"
expect 0 "$replay" compare "$T/part.json" "$T/part.json"
said "$T/part.json: the run was stopped by a signal"
expect 2 "$replay" calibrate "$T/part.json"
said "$T/part.json: the run was stopped by a signal"
# Before the first request it says so too.
"$replay" run "$T/long.jsonl" --url $nobody --wait-ready 1h >"$T/out" 2>"$T/err" &
pid=$!
until_true 30 'it does not wait for signals' grep -q '^SigBlk:.*[4567cdef]...$' /proc/$pid/status
kill -TERM $pid
status=0
wait $pid || status=$?
[ $status = 1 ] || die "interrupted while it waits: exit $status: $(cat "$T/err")"
said 'stopped by a signal: 0 of 2 requests were sent'
exec 9>&-
wait
