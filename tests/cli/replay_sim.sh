#!/usr/bin/env bash
# mc-replay sim: one run, sweeps, gates, files, and what is refused.
. "$(dirname "$0")/../common.inc"
replay=$MC_BIN/mc-replay
[ -x "$replay" ] || skip "mc-replay is not built in $MC_BIN"
profile=$MC_SOURCE/configs/profiles/sample.json
model=$MC_SOURCE/configs/models/llama3-70b.json
expect 0 "$replay" synth --profile "$profile" --seed 1 --out "$T/t.jsonl"

# The same seed gives the same bytes; all requests end; files are written.
sim() { "$replay" sim "$T/t.jsonl" --model "$model" --prefill 2 --decode 2 "$@"; }
expect 0 sim --output json --requests "$T/r.jsonl" --timeline "$T/tl.csv" --report "$T/r.json"
cp "$T/out" "$T/first"
expect 0 sim --output json
cmp "$T/out" "$T/first" || die "two runs of one seed differ"
python3 - "$T/first" "$T/r.jsonl" "$T/tl.csv" <<'PY' || die "sim --output json is not what it should be"
import json, sys
a = json.load(open(sys.argv[1]))
assert a['schema'] == 'mc-replay/1' and a['mode'] == 'sim', a
n = a['requests']['sent']
assert n > 0 and a['requests']['ok'] == n, a['requests']
rows = [json.loads(l) for l in open(sys.argv[2])]
assert len(rows) == n
for r in rows:
    parts = r['queue_ms'] + r['prefill_ms'] + r['transfer_ms'] + r['first_step_ms']
    assert abs(parts - r['ttft_ms']) < 0.01, r
assert sum(r['cached'] for r in rows) == a['cache']['hit_tokens'] > 0
assert open(sys.argv[3]).readline().startswith('at_s,prefill_nodes'), 'timeline'
assert a['options']['policy'] == 'kvcache' and a['sim']['events'] > n
PY

# A sweep is a row for each combination.
expect 0 sim --sweep policy=kvcache,random --sweep pd=1:3,3:1
[ "$(grep -c '^policy=' "$T/out")" = 4 ] || die "$(cat "$T/out")"
expect 0 sim --sweep policy=count,rr --repeat 2 --qps 2 --output json
python3 - "$T/out" <<'PY' || die "the study's JSON is not what it should be"
import json, sys
a = json.load(open(sys.argv[1]))
assert [p['setting'] for p in a['points']] == [{'policy': 'count'}, {'policy': 'rr'}], a['points']
assert all(len(p['runs']) == 2 and p['figures']['ttft_mean_s']['ci95'] >= 0 for p in a['points'])
PY

# A prefill node that fails loses no request, a decode node those that it answers; the report counts.
expect 0 sim --fault p0@5s-9s --ssd-tokens 100000 --vram-tokens 5000 --output json
jq -e '.requests.ok == .requests.sent and .sim.failures == 1' "$T/out" >/dev/null ||
  die "a prefill node's failure: $(cat "$T/out")"
expect 1 sim --fault d1@12s --output json
jq -e '.requests | .failed > 0 and .ok + .failed == .sent and
  .errors == [{"reason": "worker_failed", "count": .failed}]' "$T/out" >/dev/null ||
  die "a decode node's failure: $(cat "$T/out")"
expect 2 sim --queue-timeout -1s
expect 2 sim --fault p7@5s
grep -q "fault p7@5s: no node 'p7': there are p0 to p1 and d0 to d1" "$T/err" || die "$(cat "$T/err")"
expect 0 sim --cpp-group 2 --rack-nodes 2 --rack-latency 2ms
expect 0 sim --rack-nodes 4294967296 --rack-latency 1ms
expect 2 sim --cpp-group 3

# What would never end is refused by its flag.
refused() { # WORDS ARGUMENT...
  local want=$1
  shift
  expect 2 timeout 60 "$replay" sim "$T/t.jsonl" --model "$model" --prefill 2 --decode 2 "$@"
  grep -qF -- "$want" "$T/err" || die "$*: $(cat "$T/err")"
}
refused '--overhead 100000h: want 0s to 1h' --overhead 100000h
refused '--rack-latency 2h: want 0s to 1h' --rack-nodes 2 --rack-latency 2h
refused '--chunk 18446744073709551615: want 1 to 1073741824' --engine chunked --chunk 18446744073709551615
refused '--sample 1ns: more than 4000000 lines of --timeline: sample less often' --timeline "$T/tl.csv" --sample 1ns
expect 0 sim --overhead 1h
expect 0 sim --engine chunked --chunk 1073741824

# An option that would do nothing.
refused '--sample needs --timeline' --sample 1s
refused '--chunk needs --engine chunked' --chunk 512
expect 0 sim --chunk 512 --sweep engine=coupled,chunked
refused "two traces, $T/t.jsonl and --trace $T/u.jsonl: leave one out" --trace "$T/u.jsonl"

# So is what cannot be written, or would cost the trace or another output.
cp "$T/t.jsonl" "$T/kept.jsonl"
for flag in --report --requests --timeline; do
  refused "$flag $T/absent/r.json: create" $flag "$T/absent/r.json"
  refused "$flag $T is a folder" $flag "$T"
  refused "$flag $T/t.jsonl is the trace" $flag "$T/t.jsonl"
done
refused "--timeline $T/one.csv is the file of --requests too" --requests "$T/one.csv" --timeline "$T/one.csv"
cmp "$T/t.jsonl" "$T/kept.jsonl" || die "the trace is not what it was"

# Gates, and what makes no sense.
expect 0 sim --require 'failed==0'
expect 5 sim --require 'mean.ttft_s<0.001'
expect 2 sim --sweep policy=best
expect 2 sim --sweep polcy=rr
grep -q "did you mean 'policy'" "$T/err" || die "$(cat "$T/err")"
expect 2 sim --sweep speed=1,2 --sweep speed=3
expect 2 sim --prefill 0
grep -q 'at least one node of each' "$T/err" || die "$(cat "$T/err")"
expect 2 sim --speed -1
expect 2 sim --speed 2 --qps 3
grep -q 'both set when requests come' "$T/err" || die "$(cat "$T/err")"
expect 2 sim --sweep pd=1:3 --sweep prefill=2
grep -q 'both set the number of prefill nodes' "$T/err" || die "$(cat "$T/err")"
expect 2 sim --report "$T/r.html" --repeat 2
expect 0 sim --report "$T/r.html"
grep -q '<figure id="ttft-parts">' "$T/r.html" || die "the page of a simulation has no charts"
# A prompt for which the model has no room is left out with its line, or refused.
python3 - "$T/t.jsonl" "$T/long.jsonl" <<'PY'
import json, sys
lines = open(sys.argv[1]).readlines()
n = 10_000_000
lines[1] = json.dumps({'timestamp': 0, 'input_length': n, 'output_length': 1,
                       'hash_ids': list(range(-(-n // 512)))}) + '\n'
open(sys.argv[2], 'w').writelines(lines)
PY
expect 0 "$replay" sim "$T/long.jsonl" --model "$model"
grep -q 'line 2: input_length is 10000000: .* has room for' "$T/err" || die "$(cat "$T/err")"
expect 2 "$replay" sim "$T/long.jsonl" --model "$model" --strict
grep -q 'long.jsonl:2: input_length is 10000000' "$T/err" || die "$(cat "$T/err")"
expect 2 sim --sweep speed=1,2 --requests "$T/x"
expect 1 "$replay" sim "$T/absent.jsonl" --model "$model"
expect 1 "$replay" sim "$T/t.jsonl" --model "$T/absent.json"
expect 2 "$replay" sim

# The number of threads changes no byte.
expect 0 sim --sweep policy=kvcache,random,count --repeat 2 --threads 1 --output json
cp "$T/out" "$T/one"
expect 0 sim --sweep policy=kvcache,random,count --repeat 2 --threads 3 --output json
cmp "$T/out" "$T/one" || die "three threads and one give different studies"

# Results side by side: two reports, and the points of a study.
expect 0 sim --policy random --report "$T/random.json"
expect 0 "$replay" compare "$T/r.json" "$T/random.json" --output json
jq -e '.schema == "mc-replay-compare/1" and (.results | length) == 2 and
  (.figures | map(select(.figure == "ttft_s mean"))[0].values[1].verdict) == "unknown"' "$T/out" >/dev/null ||
  die "$(cat "$T/out")"
expect 0 "$replay" compare "$T/one"
grep -q '^ttft_s mean .* \(same\|differs\)' "$T/out" || die "$(cat "$T/out")"
expect 2 "$replay" compare "$T/r.json"
echo '{}' >"$T/other.json"
expect 2 "$replay" compare "$T/r.json" "$T/other.json"
grep -q "$T/other.json: not a result" "$T/err" || die "$(cat "$T/err")"

# A plan is met, or says that it is not; its curves are in the JSON.
plan() { "$replay" plan "$T/t.jsonl" --model "$model" --nodes 4 --caches 100k,1M --nics 100,400 "$@"; }
expect 0 plan --ttft-slo 100s --output json
jq -e '.met and .prefill + .decode == 4 and (.curves | map(.of)) == ["split", "cache", "network"]' "$T/out" >/dev/null ||
  die "$(cat "$T/out")"
expect 5 plan --ttft-slo 1ms
grep -q 'short of the target' "$T/out" || die "$(cat "$T/out")"
expect 2 plan
expect 2 plan --ttft-slo 1s --nodes 1
expect 2 plan --ttft-slo 1s --profile sample

# The published evaluation: what needs no long run.
expect 0 "$replay" paper eq2 --model "$model" --report "$T/paper.html"
grep -q '^\*\*agrees: every value' "$T/out" || die "$(cat "$T/out")"
grep -q '<svg' "$T/paper.html" || die "no plot in the HTML report"
expect 2 "$replay" paper fig99 --model "$model"
grep -q "no figure 'fig99'; there are: eq2" "$T/err" || die "$(cat "$T/err")"
expect 0 "$replay" paper eq2 fig22 --model "$model" --output json
[ "$(jq -c '[.figures[].id]' "$T/out")" = '["eq2","fig22"]' ] || die "$(cat "$T/out")"
