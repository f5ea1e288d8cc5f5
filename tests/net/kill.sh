#!/usr/bin/env bash
# kill -9 of each process in the middle of a replay: requests that touched it fail or are retried with
# a reason, the rest finish, nothing hangs, and the restarted process serves again. No block is left to
# what a killed process had asked for.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"
sample 60
cluster_up --prefill 2 --decode 2 --store 2 --block-size 512 --with 'conductor:--tx-lease 5s'

served() { curl -fsS -m 10 --json '{"model":"tiny","prompt":"again","max_tokens":2}' "$URL/v1/completions"; }
stored() { "$MC_BIN/mc-store" get kept --master "$MASTER" --cluster-key "$T/cluster/cluster.key" --out "$T/back"; }
head -c 300000 /dev/urandom >"$T/kept"

for victim in p0 d1 s1 master conductor; do
  # What a killed node held is gone with it; what was stored before its master was killed is not.
  [ "$victim" != master ] ||
    expect 0 "$MC_BIN/mc-store" put kept "$T/kept" --master "$MASTER" --cluster-key "$T/cluster/cluster.key"
  "$MC_BIN/mc-replay" run --trace "$T/trace.jsonl" --url "$URL" --speed 4 --timeout 60s --max-lag 5s \
    --output json --requests "$T/$victim.jsonl" >"$T/$victim.json" 2>"$T/$victim.err" &
  replay=$!
  # In the middle: some requests are answered, most are not.
  answered() { [ "$(curl -fsS "$URL/metrics" | awk '/^mc_conductor_requests_total/ { n += $2 } END { print n + 0 }')" -gt "$before" ]; }
  before=$(curl -fsS "$URL/metrics" | awk '/^mc_conductor_requests_total/ { n += $2 } END { print n + 5 }')
  until_true 30 "the replay does not move" answered
  loopback kill "$victim"
  loopback restart "$victim"
  rc=0
  wait $replay || rc=$?
  [ $rc = 0 ] || [ $rc = 1 ] || { cat "$T/$victim.err" >&2; die "$victim killed: replay exited $rc"; }
  jq -e '.requests | .sent == 60 and .ok + .rejected + .failed + .timeout + .cancelled == 60 and
    .timeout == 0' "$T/$victim.json" >/dev/null ||
    die "$victim killed: requests lost or hanging: $(jq -c .requests "$T/$victim.json")"
  jq -e '.requests.ok >= 20' "$T/$victim.json" >/dev/null ||
    die "$victim killed: only $(jq .requests.ok "$T/$victim.json") of 60 finished"
  jq -es 'map(select(.status != "ok" and ((.reason // "") == ""))) | length == 0' "$T/$victim.jsonl" \
    >/dev/null || die "$victim killed: a request failed without a reason"
  echo "$victim killed: $(jq -c '.requests | {ok, rejected, failed}' "$T/$victim.json")"
  until_true 30 "$victim restarted, but nothing is served" served
  rest_within 30 "$victim killed"
done
until_true 30 "an object stored before mc-master was killed cannot be read" stored
cmp "$T/kept" "$T/back" || die "the object came back as other bytes"
