#!/usr/bin/env bash
# A live run beside its own simulation: what is promised of TTFT, TBT, queueing and hits holds, the
# parts of TTFT add up, two policies rank alike, and runs that cannot be compared are refused.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"
# Short answers: one request at a time, as the quiet run has them, they would be most of the time.
sample 60
jq -c '.output_length = ([.output_length, 6] | min)' "$T/trace.jsonl" >"$T/short.jsonl"
mv "$T/short.jsonl" "$T/trace.jsonl"
run_live() { # report, options...
  local report=$1
  shift
  expect 0 "$MC_BIN/mc-replay" run --trace "$T/trace.jsonl" --url "$URL" --max-lag 5s \
    --report "$report" --requests "$report.jsonl" --require 'kv-errors==0' "$@"
}
beside_simulation() { # LIVE CALIBRATION OPTIONS...: the status of calibrate, of those that judge
  local live=$1 calibration=$2 rc=0
  shift 2
  "$MC_BIN/mc-replay" calibrate "$live" --output json "$@" >"$calibration" 2>"$T/err" || rc=$?
  [ "$rc" = 0 ] || [ "$rc" = 5 ] || [ "$rc" = 6 ] || die "calibrate of $live exits $rc: $(cat "$T/err")"
  return "$rc"
}

# The gate: calibrate fails when TTFT, TBT, queueing or hits differ by more than is promised. It tells
# a machine that ran its threads too late to judge that. Such a machine gets a slower model, whose
# times are more of what is measured; what is over must be so with each of them. Queueing at p50 is
# the machine's own, as half of the requests find nobody before them: a busy one may leave it open.
gate() { # TIME-SCALE
  local rc=0 run
  for run in "quiet --concurrency 1" "live --speed $(jq -n "40 / $1")"; do
    cluster_up --prefill 1 --decode 1 --store 1 --block-size 512 --time-scale "$1"
    # shellcheck disable=SC2086  # the options are words
    run_live "$T/${run%% *}.json" ${run#* }
    loopback down
  done
  beside_simulation "$T/live.json" "$T/calibration.json" --quiet "$T/quiet.json" --time-scale "$1" || rc=$?
  jq -e '.schema == "mc-replay-calibration/1" and .figures.hit_ratio.error == 0' \
    "$T/calibration.json" >/dev/null || die "hits differ: $(cat "$T/calibration.json")"
  jq -r --arg scale "$1" '"time scale \($scale): \(.why)"' "$T/calibration.json"
  [ $rc != 6 ] || ! jq -e '.figures | map_values(select(.verdict == "not measured")) | keys == ["queue_s_p50"]' \
    "$T/calibration.json" >/dev/null || rc=0
  return $rc
}
apart=0  # what was judged to differ is not excused by what could not be judged
for scale in 20 40 80; do
  verdict=0
  gate $scale || verdict=$?
  [ $verdict != 5 ] || apart=1
  [ $verdict != 0 ] || break
done
[ $verdict = 0 ] || [ $apart = 0 ] || die "live and simulated differ: $(cat "$T/calibration.json")"
# What the server tells is inside what the client saw; the rest is the way between them.
jq -se 'map(.ttft_ms - (.queue_ms + .prefill_ms + .transfer_ms + .first_step_ms)) as $rest |
  ($rest | min) > -1 and ($rest | add) < 0.5 * (map(.ttft_ms) | add)' "$T/live.json.jsonl" \
  >/dev/null || die "the parts do not add up to TTFT: $(head -3 "$T/live.json.jsonl")"

# Two policies on two prefill workers without a store, where only the conductor makes caches hit: the
# policy that knows them is ahead, live by half as much as simulated, which no chance makes. Both run at
# once: what else the machine does hits both. On a busy machine their times are longer, as above.
run_policy() ( # POLICY TIME-SCALE: the live run beside its simulation, into $T/POLICY.cal
  to=$T T=$T/$1
  mkdir "$T"
  cp "$to/trace.jsonl" "$T"
  cluster_up --prefill 2 --decode 1 --store 0 --block-size 512 --time-scale "$2" --policy "$1"
  run_live "$T/live.json" --speed "$(jq -n "120 / $2")"
  beside_simulation "$T/live.json" "$to/$1.cal" --time-scale "$2" || true
)
lead() { # FIGURE live or simulated: how far kvcache is ahead
  jq -s ".[1].figures.$1.$2 - .[0].figures.$1.$2" "$T/kvcache.cal" "$T/random.cal"
}
above() { jq -ne "$1 > $2" >/dev/null; }
for scale in 40 80 160; do
  runs=()
  for policy in kvcache random; do
    run_policy $policy $scale &
    runs+=($!)
  done
  failed=0  # their clusters are down before this ends
  for run in "${runs[@]}"; do wait "$run" || failed=1; done
  [ $failed = 0 ] || die "a policy's run failed: see above"
  figures=$(jq -c .figures "$T"/{kvcache,random}.cal)
  for how in live simulated; do
    above 0 "$(lead hit_ratio $how)" || die "$how: kvcache hits no more: $figures"
  done
  simulated=$(lead ttft_s simulated) live=$(lead ttft_s live)
  above "$simulated" 0 || die "simulated: kvcache is not ahead: $figures"
  echo "time scale $scale: kvcache is ahead by $live s of TTFT, simulated by $simulated s"
  ! above "$live" "$simulated / 2" || break
  [ $scale -lt 160 ] || die "live: kvcache is hardly ahead: $figures"
done

# What it refuses.
expect 2 "$MC_BIN/mc-replay" calibrate "$T/quiet.json"
grep -q 'give it as --quiet' "$T/err" || die "a closed loop as the live run: $(cat "$T/err")"
expect 2 "$MC_BIN/mc-replay" calibrate "$T/live.json" --quiet "$T/live.json"
grep -q 'concurrency 1' "$T/err" || die "an open loop as the quiet run: $(cat "$T/err")"
expect 2 "$MC_BIN/mc-replay" calibrate "$T/live.json" --limit 10
grep -q 'played 60 requests' "$T/err" || die "another trace: $(cat "$T/err")"
[ $verdict = 0 ] || skip "the machine was too busy to judge times: $(jq -r .why "$T/calibration.json")"
