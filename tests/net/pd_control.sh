#!/usr/bin/env bash
# Workers that join without a role are given one; prompts that grow draw workers to prefill, answers
# that grow draw them back, without flapping and without a failed request; scale-in dismisses one.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"

# Ten seconds of long prompts, then fifteen of long answers; no block is like another.
jq -cn 'range(0; 70) as $i | (if $i < 30 then {at: ($i * 330), n: 8192, out: 2}
    else {at: (10000 + ($i - 30) * 375), n: 512, out: 50} end) |
  {timestamp: .at, input_length: .n, output_length: .out,
   hash_ids: [range(0; .n / 512) | . + $i * 100]}' >"$T/trace.jsonl"

cluster_up --auto 4 --store 0 --block-size 512 --time-scale 40 \
  --with 'conductor:--pd-control --pd-interval 2s --pd-cooldown 3s --admission none --tbt-slo 200ms'
roles() { # of those that are not draining: how many prefill, how many decode
  curl -fsS "$URL/cluster" | jq -r '[.nodes[] | select(.draining | not) | .role] |
    "\(map(select(. == "prefill")) | length) \(map(select(. == "decode")) | length)"'
}
are() { [ "$(roles)" = "$1" ]; }
moves() { loopback logs conductor | grep -o 'is to be a [a-z]* worker' | cut -d' ' -f5 | uniq -c; }
until_true 30 "four workers were given the roles $(roles)" are "2 2"

"$MC_BIN/mc-replay" run --trace "$T/trace.jsonl" --url "$URL" --timeout 60s --max-lag 5s --output json \
  >"$T/run.json" 2>"$T/run.err" &
replay=$!
until_true 30 "no worker went to prefill: $(roles)" are "3 1"
until_true 30 "no worker went to decode: $(roles)" are "2 2"
wait $replay || die "the replay failed: $(cat "$T/run.err")"
jq -e '.requests | .sent == 70 and .ok == 70' "$T/run.json" >/dev/null ||
  die "requests failed: $(jq -c .requests "$T/run.json")"
# It went one way, then the other, and then stood still.
mapfile -t went < <(moves)
[ ${#went[@]} = 2 ] && [[ ${went[0]} = *"1 prefill" ]] && [[ ${went[1]} = *decode ]] ||
  die "the controller flaps: ${went[*]} $(loopback logs conductor | grep 'prefill and decode: ')"
loopback logs conductor | grep 'prefill and decode: to_prefill: prefill [0-9.]* on 2, decode' >/dev/null ||
  die "a decision is not logged with its inputs"
curl -fsS "$URL/cluster" | jq -e '.pd.wanted | .prefill + .decode == 4' >/dev/null ||
  die "no wanted counts: $(curl -fsS "$URL/cluster" | jq -c .pd)"
echo "moves: ${went[*]}"

# Scale-in under load: the worker finishes what it has, and ends.
admin() { curl -sS -m 10 -o "$T/body" -w '%{http_code}' --unix-socket "$T/cluster/conductor.sock" "$@"; }
scale_in() { admin -X POST ${1:+--json "$1"} http://mc/admin/scale-in; }
ends() { ! kill -0 "$(cat "$T/cluster/$1.pid")" 2>/dev/null; }
head -40 "$T/trace.jsonl" >"$T/short.jsonl"
"$MC_BIN/mc-replay" run --trace "$T/short.jsonl" --url "$URL" --speed 2 --timeout 60s --max-lag 5s --output json \
  >"$T/run.json" 2>"$T/run.err" &
replay=$!
busy() { curl -fsS "$URL/cluster" | jq -e '.in_flight >= 3' >/dev/null; }
until_true 30 "the replay does not move" busy
[ "$(scale_in)" = 200 ] || die "scale-in: $(cat "$T/body")"
gone=$(jq -r .worker "$T/body")
until_true 60 "$gone does not end" ends "$gone"
wait $replay || die "the replay failed: $(cat "$T/run.err")"
jq -e '.requests | .sent == 40 and .ok == 40' "$T/run.json" >/dev/null ||
  die "requests failed: $(jq -c .requests "$T/run.json")"
grep -q 'dismissed: scale-in' "$T/cluster/$gone.log" || die "$gone does not say why it ended"

# What it refuses.
three() { [ "$(curl -fsS "$URL/cluster" | jq '.nodes | length')" = 3 ]; }
until_true 30 "$gone is still known" three
[ "$(scale_in '{"worker":"nobody"}')" = 404 ] || die "an unknown worker: $(cat "$T/body")"
grep -q nobody "$T/body" || die "it does not name the worker: $(cat "$T/body")"
[ "$(scale_in '{"role":"hermit"}')" = 400 ] || die "an unknown role: $(cat "$T/body")"
[ "$(scale_in '{"rol":"decode"}')" = 400 ] || die "an unknown member: $(cat "$T/body")"
only=$(curl -fsS "$URL/cluster" | jq -r '.nodes | group_by(.role)[] | select(length == 1)[0].name')
[ "$(scale_in "{\"worker\":\"$only\"}")" = 409 ] || die "the only worker of its side: $(cat "$T/body")"
[ "$(admin http://mc/admin/scale-in)" = 405 ] || die "GET is served"
status=$(curl -sS -m 10 -o "$T/body" -w '%{http_code}' -X POST "$URL/admin/scale-in")
[ "$status" = 403 ] || die "loopback dismisses workers: $status"
