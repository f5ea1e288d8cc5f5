#!/usr/bin/env bash
# Two processes of a cluster at once, drawn by a seed, stand still for a while or die, in the middle of a replay
# (F104, F108): each request finishes or fails with a reason, no byte of KV is wrong, no block is left to what
# asked for it, and the processes serve again. A minute for four seeds. MC_SEEDS: which, "1 2 3" for some.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/../net/cluster.inc"
sample 60
# A decode worker that was thought gone keeps what was reserved there for as long as a prompt may take.
cluster_up --prefill 2 --decode 2 --store 2 --block-size 512 --with 'conductor:--tx-lease 5s --prefill-timeout 15s'

served() { curl -fsS -m 10 --json '{"model":"tiny","prompt":"again","max_tokens":2}' "$URL/v1/completions"; }
answers() { curl -fsS -m 10 "$URL/metrics" | awk '/^mc_conductor_requests_total/ { n += $2 } END { print n + 0 }'; }
answered() { [ "$(answers)" -gt "$before" ]; }
pid_of() { cat "$T/cluster/$1.pid"; }
all=(p0 p1 d0 d1 s0 s1 master conductor)

for seed in ${MC_SEEDS:-$(seq 12)}; do
  RANDOM=$seed
  first=$((RANDOM % ${#all[@]}))
  second=$(((first + 1 + RANDOM % (${#all[@]} - 1)) % ${#all[@]}))
  pair=("${all[first]}" "${all[second]}")
  how=$([ $((RANDOM % 2)) = 0 ] && echo stopped || echo killed)
  what="seed $seed, ${pair[*]} $how"
  "$MC_BIN/mc-replay" run --trace "$T/trace.jsonl" --url "$URL" --speed 4 --timeout 60s --max-lag 20s \
    --output json --requests "$T/$seed.jsonl" >"$T/$seed.json" 2>"$T/$seed.err" &
  replay=$!
  before=$(($(answers) + 5 + RANDOM % 20))
  until_true 30 "$what: the replay does not move" answered
  if [ "$how" = stopped ]; then
    for name in "${pair[@]}"; do kill -STOP "$(pid_of "$name")"; done
    fault_time $((500 + RANDOM % 7000))
    for name in "${pair[@]}"; do kill -CONT "$(pid_of "$name")"; done
  else
    for name in "${pair[@]}"; do loopback kill "$name"; done
    for name in "${pair[@]}"; do loopback restart "$name"; done
  fi
  rc=0
  wait $replay || rc=$?
  [ $rc = 0 ] || [ $rc = 1 ] || { cat "$T/$seed.err" >&2; die "$what: replay exited $rc"; }
  jq -e '.requests | .sent == 60 and .ok + .rejected + .failed + .timeout + .cancelled == 60 and .timeout == 0' \
    "$T/$seed.json" >/dev/null || die "$what: requests lost or hanging: $(jq -c .requests "$T/$seed.json")"
  jq -es 'map(select(.status != "ok" and ((.reason // "") == ""))) | length == 0' "$T/$seed.jsonl" >/dev/null ||
    die "$what: a request failed without a reason"
  jq -e '(.kv_errors // 0) == 0' "$T/$seed.json" >/dev/null || die "$what: bytes of KV are wrong"
  until_true 60 "$what: nothing is served" served
  rest_within 40 "$what"
  echo "$what: $(jq -c '.requests | {ok, rejected, failed}' "$T/$seed.json")"
done
