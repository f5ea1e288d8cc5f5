#!/usr/bin/env bash
# A live run beside its own simulation: what is promised of TTFT, TBT, queueing and hits holds, the
# parts of TTFT add up, two policies rank alike, and runs that cannot be compared are refused.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"
sample 60
run_live() { # report, options...
  local report=$1
  shift
  expect 0 "$MC_BIN/mc-replay" run --trace "$T/trace.jsonl" --url "$URL" --max-lag 5s \
    --report "$report" --requests "$report.jsonl" --require 'kv-errors==0' "$@"
}

# Slow enough that the model's times, not this machine's, are most of what is measured.
up() { cluster_up --prefill 1 --decode 1 --store 1 --block-size 512 --time-scale 20; }
# The gate: calibrate fails when TTFT, TBT, queueing or hits differ by more than is promised. It tells
# a machine that ran its threads too late ("not measured"), which fails nothing and proves nothing.
# Other work may come and go in the midst of a run: what is over must be so three times.
gate() {
  local rc=0
  up
  run_live "$T/quiet.json" --concurrency 1
  loopback down
  up
  run_live "$T/live.json" --speed 2
  loopback down
  "$MC_BIN/mc-replay" calibrate "$T/live.json" --quiet "$T/quiet.json" --time-scale 20 \
    --output json >"$T/calibration.json" 2>"$T/err" || rc=$?
  [ "$rc" = 0 ] || [ "$rc" = 5 ] || [ "$rc" = 6 ] || die "calibrate exits $rc: $(cat "$T/err")"
  jq -e '.schema == "mc-replay-calibration/1" and .figures.hit_ratio.error == 0' \
    "$T/calibration.json" >/dev/null || die "hits differ: $(cat "$T/calibration.json")"
  jq -r .why "$T/calibration.json"
  [ "$rc" != 5 ]
}
gate || gate || gate || die "live and simulated differ: $(cat "$T/calibration.json")"
# What the server tells is inside what the client saw; the rest is the way between them.
jq -se 'map(.ttft_ms - (.queue_ms + .prefill_ms + .transfer_ms + .first_step_ms)) as $rest |
  ($rest | min) > -1 and ($rest | add) < 0.5 * (map(.ttft_ms) | add)' "$T/live.json.jsonl" \
  >/dev/null || die "the parts do not add up to TTFT: $(head -3 "$T/live.json.jsonl")"

# Two policies on two prefill workers without a store, where only the conductor makes caches hit:
# live and simulated, the policy that knows them is ahead.
run_policy() { # the live run beside its simulation, into $T/POLICY.cal
  local policy=$1 rc=0
  cluster_up --prefill 2 --decode 1 --store 0 --block-size 512 --time-scale 40 --policy "$policy"
  run_live "$T/$policy.json" --speed 3
  loopback down
  "$MC_BIN/mc-replay" calibrate "$T/$policy.json" --time-scale 40 --output json \
    >"$T/$policy.cal" 2>"$T/err" || rc=$?
  [ "$rc" = 0 ] || [ "$rc" = 5 ] || [ "$rc" = 6 ] || die "calibrate of $policy exits $rc: $(cat "$T/err")"
}
ahead() { # FIGURE, live or simulated
  local than='<'
  [ "$1" = ttft_s ] || than='>'
  jq -se ".[0].figures.$1.$2 $than .[1].figures.$1.$2" "$T/kvcache.cal" "$T/random.cal" >/dev/null
}
# A machine that was busy during one of the two says nothing of times: three goes.
for go in 1 2 3; do
  for policy in kvcache random; do run_policy $policy; done
  for how in live simulated; do
    ahead hit_ratio $how || die "$how: kvcache hits no more: $(jq -c .figures "$T"/{kvcache,random}.cal)"
  done
  ahead ttft_s simulated || die "simulated: kvcache is not ahead: $(jq -c .figures "$T"/{kvcache,random}.cal)"
  ! ahead ttft_s live || break
  [ "$go" -lt 3 ] || die "live: kvcache is not ahead: $(jq -c .figures "$T"/{kvcache,random}.cal)"
done
jq -r '.figures.ttft_s | "\(.live) \(.simulated)"' "$T/kvcache.cal" "$T/random.cal"

# What it refuses.
expect 2 "$MC_BIN/mc-replay" calibrate "$T/quiet.json"
grep -q 'give it as --quiet' "$T/err" || die "a closed loop as the live run: $(cat "$T/err")"
expect 2 "$MC_BIN/mc-replay" calibrate "$T/live.json" --quiet "$T/live.json"
grep -q 'concurrency 1' "$T/err" || die "an open loop as the quiet run: $(cat "$T/err")"
expect 2 "$MC_BIN/mc-replay" calibrate "$T/live.json" --limit 10
grep -q 'played 60 requests' "$T/err" || die "another trace: $(cat "$T/err")"
