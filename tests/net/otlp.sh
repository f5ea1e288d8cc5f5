#!/usr/bin/env bash
# One trace from a client's traceparent to the workers' spans, at a collector, and on to the master and the
# disks of the KV store; external engines get it too.
# A collector that is gone, never answers or answers rubbish leaves requests alone.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/../daemons.inc"
trace=0af7651916cd43dd8448eb211c80319c client=b7ad6b7169203331
spans=$T/spans.jsonl
collect() { # MODE -> $collector
  rm -f "$spans.address"
  python3 "$MC_SOURCE/tests/net/collector.py" "$spans" "$1" >"$T/collector.log" 2>&1 &
  PIDS[collector]=$!
  until_true 30 "the collector does not start" test -s "$spans.address"
  collector=http://$(cat "$spans.address")
}
serve() { # COLLECTOR
  launch conductor "$MC_BIN/mc-conductor" --listen 127.0.0.1:0 --http 127.0.0.1:0 --model tiny \
    --admin-socket "$T/admin.sock" --otlp "$1" --otlp-ratio 0
  launch p0 "$MC_BIN/mc-prefill" --listen 127.0.0.1:0 --http 127.0.0.1:0 --model tiny --name p0 \
    --conductor "$(address conductor)" --blocks 64 --otlp "$1"
  launch d0 "$MC_BIN/mc-decode" --listen 127.0.0.1:0 --http 127.0.0.1:0 --model tiny --name d0 \
    --conductor "$(address conductor)" --blocks 64 --otlp "$1"
  http=$(jq -r .http "$T/conductor.json")
  until_true 30 "the cluster is not ready" curl -fsS -m 5 "http://$http/ready" -o "$T/out"
}
ask() { # HEADER...
  curl -fsS -m 20 "http://$http/v1/completions" -o "$T/body" "$@" \
    --json '{"model":"tiny","prompt":"what goes through all of it","max_tokens":4}' ||
    die "no answer: $(cat "$T/body" 2>/dev/null)"
}
down() { for name in d0 p0 conductor; do stop $name; done; }

# of SERVICE NAME: that span's id; below ID SERVICE NAME: whether that span is, with that parent
of() { jq -r "select(.service == \"$1\" and .name == \"$2\" and .traceId == \"$trace\").spanId" "$spans"; }
below() {
  jq -es --arg p "$1" --arg s "$2" --arg n "$3" --arg t $trace 'any(.[]; .service == $s and .name == $n
    and .traceId == $t and .parentSpanId == $p)' "$spans" >/dev/null
}

collect good
serve "$collector"
ask # no trace of its own, and --otlp-ratio 0
ask -H "traceparent: 00-$trace-$client-00"
ask -H "traceparent: 00-$trace-0000000000000000-01" # invalid: no trace
ask -H "traceparent: 00-$trace-$client-01" -H 'tracestate: vendor=1'
down # they send what they have
[ "$(jq -r .traceId "$spans" | sort -u)" = $trace ] || die "other traces: $(cat "$spans")"
[ "$(jq -r '.traceState // "none"' "$spans" | sort | uniq -c | awk '$2 == "vendor=1"' | wc -l)" = 1 ] ||
  die "no tracestate: $(cat "$spans")"
below $client mc-conductor 'POST /v1/completions' || die "the client's span is not above all: $(cat "$spans")"
below "$(of mc-conductor 'POST /v1/completions')" mc-conductor request || die "no request: $(cat "$spans")"
request=$(of mc-conductor request)
for name in decide reserve tx-allocate prefill answer; do
  below "$request" mc-conductor $name || die "no $name below the request: $(cat "$spans")"
done
below "$(of mc-conductor prefill)" mc-prefill prefill || die "no prefill: $(cat "$spans")"
for name in queue compute transfer; do
  below "$(of mc-prefill prefill)" mc-prefill $name || die "no $name below the prefill: $(cat "$spans")"
done
below "$(of mc-prefill transfer)" mc-decode receive || die "no transfer to the decode worker: $(cat "$spans")"
below "$request" mc-decode decode || die "no decode: $(cat "$spans")"
for name in 'wait for KV' 'wait for batch' generate; do
  below "$(of mc-decode decode)" mc-decode "$name" || die "no $name below the decode: $(cat "$spans")"
done
[ "$(jq -s 'map(.spanId) | length - (unique | length)' "$spans")" = 0 ] || die "a span twice: $(cat "$spans")"
jq -es 'all(.[]; (.endTimeUnixNano | tonumber) >= (.startTimeUnixNano | tonumber))' "$spans" >/dev/null ||
  die "a span ends before it begins: $(cat "$spans")"

# With a KV store: calls to it are in the trace too. A worker puts a prompt there; a new one gets it
# back, when the store, started again, has it on a disk only; and once more, when it is in memory.
: >"$spans"
launch master "$MC_BIN/mc-master" --listen 127.0.0.1:0 --http 127.0.0.1:0 --offload eager --otlp "$collector"
store_up() {
  launch store "$MC_BIN/mc-store" serve --listen 127.0.0.1:0 --http 127.0.0.1:0 --name s0 --size 16MiB \
    --master "$(address master)" --ssd "$T/ssd" --ssd-size 64MiB --ssd-flush 50ms --otlp "$collector"
}
worker_up() {
  launch p0 "$MC_BIN/mc-prefill" --listen 127.0.0.1:0 --http 127.0.0.1:0 --model tiny --name p0 \
    --conductor "$(address conductor)" --blocks 64 --master "$(address master)" --connector multi \
    --pool-reuse always --otlp "$collector"
  until_true 30 "the cluster is not ready" curl -fsS -m 5 "http://$http/ready" -o "$T/out"
}
pool() { curl -fsS -m 5 "http://$(jq -r .http "$T/p0.json")/metrics" | awk -v m="mc_engine_pool_$1_total" '$1 == m { print $2 }'; }
long() {
  curl -fsS -m 20 "http://$http/v1/completions" -o "$T/body" -H "traceparent: 00-$trace-$client-01" --json \
    "$(jq -n '{model: "tiny", prompt: ([range(300) | "w\(.)"] | join(" ")), max_tokens: 2}')" ||
    die "no answer: $(cat "$T/body" 2>/dev/null)"
}
put() { [ "$(pool blocks_stored)" -gt 2 ]; }
store_up
serve_decode() {
  launch conductor "$MC_BIN/mc-conductor" --listen 127.0.0.1:0 --http 127.0.0.1:0 --model tiny \
    --admin-socket "$T/admin.sock" --otlp "$collector"
  http=$(jq -r .http "$T/conductor.json")
  launch d0 "$MC_BIN/mc-decode" --listen 127.0.0.1:0 --http 127.0.0.1:0 --model tiny --name d0 \
    --conductor "$(address conductor)" --blocks 64 --otlp "$collector"
}
serve_decode
worker_up
long
until_true 30 "the worker puts nothing in the store" put
on_disk() {
  "$MC_BIN/mc-store" ls --master "$(address master)" --output json | jq -es 'map(select(.disks > 0)) | length > 2' >"$T/out"
}
until_true 30 "nothing is on the disk" on_disk
stop p0
stop store
store_up
until_true 30 "the store brought nothing back on its disk" on_disk
worker_up
long
[ "$(pool tokens)" -gt 0 ] || die "nothing came from the store: $(tail "$T/p0.log")"
for name in p0 d0 conductor store master; do stop $name; done
# each SERVICE NAME PARENT-SERVICE PARENT: there is such a span, and all of them are below such a parent
each() {
  jq -es --arg s "$1" --arg n "$2" --arg q "$3" --arg p "$4" --arg t $trace 'map(select(.traceId == $t)) as $all |
    [$all[] | select(.service == $q and .name == $p).spanId] as $above |
    [$all[] | select(.service == $s and .name == $n)] | length > 0 and
    all(.[]; .parentSpanId | IN($above[]))' "$spans" >/dev/null ||
    die "no $2 of $1 below $4 of $3: $(jq -c '[.service, .name, .spanId, .parentSpanId]' "$spans")"
}
each mc-prefill put mc-prefill prefill
each mc-prefill write mc-prefill put
for call in put-start put-end; do
  each mc-prefill $call mc-prefill put
  each mc-master $call mc-prefill $call
done
each mc-prefill fetch mc-prefill prefill
each mc-prefill match-prefix mc-prefill fetch
each mc-master match-prefix mc-prefill match-prefix
each mc-prefill get mc-prefill fetch
each mc-prefill load-objects mc-prefill get
each mc-store load-objects mc-prefill load-objects
each mc-prefill read mc-prefill get
jq -es 'any(.[]; .name == "read" and (.attributes | any(.key == "mc.to" and .value.stringValue == "s0") and
  any(.key == "mc.bytes" and (.value.intValue | tonumber) > 0)))' "$spans" >/dev/null ||
  die "a read does not say from where, and how much: $(jq -c 'select(.name == "read").attributes' "$spans")"

# An external engine gets the trace, with the conductor's span above it.
: >"$spans"
launch conductor "$MC_BIN/mc-conductor" --listen 127.0.0.1:0 --http 127.0.0.1:0 --model tiny \
  --admin-socket "$T/admin.sock" --otlp "$collector"
http=$(jq -r .http "$T/conductor.json")
"$MC_BIN/mock-engine" e org/tiny 16 both "$T/e.json" "$T/e.headers" >"$T/e.log" 2>&1 &
# shellcheck disable=SC2034  # daemons.inc ends it
PIDS["engine"]=$!
until_true 30 "the engine does not start" test -s "$T/e.json"
curl -fsS -m 5 --unix-socket "$T/admin.sock" http://mc/register --json "@$T/e.json" -o "$T/out" ||
  die "the engine is not registered"
until_true 30 "the engine is not up" curl -fsS -m 5 "http://$http/ready" -o "$T/out"
ask -H "traceparent: 00-$trace-$client-01" -H 'tracestate: vendor=1'
stop conductor
stop engine
below "$(of mc-conductor request)" mc-conductor engine || die "no engine below the request: $(cat "$spans")"
grep -qx "traceparent: 00-$trace-$(of mc-conductor engine)-01" "$T/e.headers" ||
  die "the engine got another traceparent: $(cat "$T/e.headers")"
grep -qx 'tracestate: vendor=1' "$T/e.headers" || die "no tracestate: $(cat "$T/e.headers")"
kill_9 collector
[ -z "${MC_TEST_BODIES:-}" ] || cp "$spans.bodies" "$MC_TEST_BODIES"

# Collectors that do not take them.
none_sent() { grep -Eq '^mc_otlp_spans_total\{result="sent"\} 0$' <<<"$(curl -fsS -m 5 "http://$http/metrics")"; }
for mode in slow rubbish none; do
  collector=http://127.0.0.1:1
  [ $mode = none ] || collect $mode
  serve "$collector"
  for _ in 1 2 3; do ask -H "traceparent: 00-$trace-$client-01"; done
  none_sent || die "spans count as sent to a collector that is $mode"
  for name in d0 p0; do kill_9 $name; done
  stop conductor
  [ $mode = none ] || kill_9 collector
done
