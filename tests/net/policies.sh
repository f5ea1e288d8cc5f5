#!/usr/bin/env bash
# On conversations of the public trace, on a live cluster as in its own simulation, the policy that
# knows caches is ahead of the one that counts requests, and that one ahead of chance, in mean TTFT.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"
trace=${MC_TEST_SHARED:-}/traces/conversation_trace.jsonl
[ -s "$trace" ] || skip "no conversation trace: MC_TEST_SHARED"
[ -z "${MC_SANITIZE:-}" ] || skip "times of a sanitized build say nothing"

# Whole conversations of several turns, in their order, in half a minute. Answers are short: what is
# compared is the way to the first token.
python3 - "$trace" >"$T/trace.jsonl" <<'PY'
import collections, json, sys
talks = collections.defaultdict(list)
for line in open(sys.argv[1]):
    r = json.loads(line)
    if len(r['hash_ids']) > 1 and r['input_length'] <= 32768:
        talks[r['hash_ids'][1]].append(r)
chosen = []
for turns in sorted(talks.values(), key=lambda t: t[0]['timestamp']):
    if 3 <= len(turns) <= 8 and len(chosen) < 200:
        chosen += turns
chosen.sort(key=lambda r: r['timestamp'])
for i, r in enumerate(chosen):
    print(json.dumps({'timestamp': i * 32000 // len(chosen), 'input_length': r['input_length'],
                      'output_length': 4, 'hash_ids': r['hash_ids']}))
PY
run_policy() ( # POLICY TIME-SCALE: the live run beside its simulation, into $T/POLICY.cal
  policy=$1 scale=$2 rc=0 to=$T
  T=$T/$policy
  mkdir "$T"
  cp "$to/trace.jsonl" "$T"
  cluster_up --prefill 4 --decode 2 --store 0 --block-size 512 --time-scale "$scale" --policy "$policy"
  expect 0 "$MC_BIN/mc-replay" run --trace "$T/trace.jsonl" --url "$URL" --max-lag 5s \
    --speed "$(jq -n "20 / $scale")" --report "$T/report.json" --require 'kv-errors==0'
  "$MC_BIN/mc-replay" calibrate "$T/report.json" --time-scale "$scale" --output json \
    >"$to/$policy.cal" 2>"$T/err" || rc=$?
  [ "$rc" = 0 ] || [ "$rc" = 5 ] || [ "$rc" = 6 ] || die "calibrate of $policy exits $rc: $(cat "$T/err")"
)
# in_order HOW SHARE: live or simulated, the next policy is behind by that share of what it is simulated
in_order() {
  jq -se --arg how "$1" --argjson share "$2" 'map(.figures.ttft_s) |
    [.[:-1], .[1:]] | transpose | all(.[1][$how] - .[0][$how] > $share * (.[1].simulated - .[0].simulated))' \
    "$T"/{kvcache,count,random}.cal >/dev/null
}

# All three at once, so that what else the machine does hits all of them. One that was busy says nothing
# all the same, nor does one that fell behind (--max-lag): it gets slower models, whose times are more
# of what is measured. Policies that are alike are never that far apart.
for scale in 20 40 80; do
  runs=()
  for policy in kvcache count random; do
    run_policy $policy $scale &
    runs+=($!)
  done
  failed=0  # their clusters are down before this ends
  for run in "${runs[@]}"; do wait "$run" || failed=1; done
  if [ $failed = 1 ]; then
    why="a policy's run failed: see above"
    echo "$why, at time scale $scale"
    continue
  fi
  jq -r '.figures | "\(.ttft_s.live) \(.ttft_s.simulated) \(.hit_ratio.live)"' \
    "$T"/{kvcache,count,random}.cal
  in_order simulated 0 || die "simulated: not in that order"
  ! in_order live 0.5 || exit 0
  why="live: not in that order, or hardly"
  echo "$why, at time scale $scale"
done
die "$why"
