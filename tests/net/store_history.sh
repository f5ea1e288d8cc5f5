#!/usr/bin/env bash
# Clients put, get and remove self-describing values while nodes are killed, stopped past their time
# to live, ended and started again, and the master is killed while all are there; then their history
# is checked: no wrong bytes, nothing old after something newer was acknowledged, nothing hangs.
# MC_SOAK=SECONDS: for how long.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/store.inc"
SECONDS_LONG=${MC_SOAK:-20}
SEED=${MC_SEED:-$RANDOM}
RANDOM=$SEED
LIMIT_KB=$((${MC_HISTORY_RSS_MB:-400} * 1024))
[ -z "${MC_SANITIZE:-}" ] || LIMIT_KB=$((LIMIT_KB * 10))

nodes() { store stat --output json | jq -e "(.nodes | length) == $1 and .rebuilding == \"\"" >/dev/null; }
all_up() { until_true 30 "not all nodes are mounted" nodes 4; }
up() {
  local ssd=(--ssd "$T/$1.ssd" --ssd-size 64MiB --ssd-flush 20ms --ssd-staging 4MiB --ssd-lease 300ms)
  case $1 in
    a) node_up a --size 6MiB "${ssd[@]}" --ssd-backend bucket --ssd-bucket 2MiB ;;
    b) node_up b --size 6MiB "${ssd[@]}" --ssd-backend offset ;;
    c) node_up c --size 6MiB "${ssd[@]}" --ssd-backend file --transports tcp ;;
    d) node_up d --segment "4MiB@file:$T/d.segment" --segment 2MiB ;;
  esac
}
MASTER_FLAGS=(--on-slow-offload wait)
master_up "${MASTER_FLAGS[@]}"
for n in a b c d; do up $n; done

"$MC_BIN/store-history" --master "$MASTER" --time "$((SECONDS_LONG + 60))s" --stop "$T/stop" \
  --output json >"$T/history" 2>"$T/wrong" </dev/null &
clients=$!
# Beside them a client whose frame drips past --put-discard, and one that stands still in its copy (F1, F2).
echo '{"transport": "shm", "op": "write", "skip": 1, "count": 1, "stop": true}' >"$T/halt"
late() {
  local n=0 writer
  while [ -d "$T" ] && [ ! -e "$T/stop" ]; do
    n=$((n + 1))
    "$MC_BIN/late-writer" --master "$MASTER" --key "late/$n" --bytes 300KiB --time "$(ms 2500)" --go "$T/stop" \
      --fault "$1" >/dev/null 2>&1 </dev/null &
    writer=$!
    fault_time 2500
    while kill -CONT $writer 2>/dev/null; do pause_briefly; done
    wait $writer || true
  done
}
late "" &
dripping=$!
late "$T/halt" &
standing=$!
end=$((SECONDS + SECONDS_LONG))
turns=0
while [ $SECONDS -lt $end ] && kill -0 $clients 2>/dev/null; do
  turns=$((turns + 1))
  letters=abcd
  n=${letters:RANDOM % 4:1}
  case $((RANDOM % 7)) in
    0 | 1)  # kill -9, back at once or later
      kill_9 $n
      [ $((RANDOM % 2)) = 0 ] || fault_time 2500
      up $n
      ;;
    2 | 3)  # stopped past its time to live
      kill -STOP "${PIDS[$n]}"
      fault_time 2300
      kill -CONT "${PIDS[$n]}"
      ;;
    4)  # stopped for a moment
      kill -STOP "${PIDS[$n]}"
      fault_time 700
      kill -CONT "${PIDS[$n]}"
      ;;
    5)  # ended
      stop $n
      fault_time $((RANDOM % 10 * 100))
      up $n
      ;;
    6)
      all_up
      kill_9 master
      [ $((RANDOM % 2)) = 0 ] || fault_time 500
      master_up "${MASTER_FLAGS[@]}"
      ;;
  esac
  all_up
done
for p in master a b c d; do
  rss=$(awk '/VmRSS/ { print $2 }' "/proc/${PIDS[$p]}/status")
  [ "$rss" -lt $LIMIT_KB ] || die "$p has grown to $((rss / 1024)) MiB"
done
touch "$T/stop"
wait $dripping $standing || true
rc=0
wait $clients || rc=$?
cat "$T/history"
if [ $rc != 0 ]; then
  head -20 "$T/wrong" >&2
  [ -z "${MC_KEEP:-}" ] || cp -r "$T" "$MC_KEEP"
  die "seed $SEED, $turns turns: the history is not one of a store that keeps its promises"
fi
jq -e '.got > 100 and .stored > 50' "$T/history" >/dev/null || die "hardly anything happened"
echo "$turns turns, seed $SEED"
