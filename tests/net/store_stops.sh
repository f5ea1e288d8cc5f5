#!/usr/bin/env bash
# Processes that stand still for longer than any peer waits: a master loses no node, a writer writes
# over nobody. And a node that dies under readers who have another replica costs none of them an error.
# Each fault is seen to have happened: what passes without it says nothing.
. "$(dirname "$0")/../common.inc"
. "$(dirname "$0")/store.inc"

master_up
for n in a b; do node_up "$n" --size 48MiB; done
value() { blob $((900000 + $1 * 8000)) "$1" "$2"; }  # 100 of them are more than there is room
stands() { grep -q '^State:.T' "/proc/$1/status" 2>/dev/null; }
metric() { curl -s "http://$(jq -r .http "$T/master.json")/metrics" | awk -v n="$1" '$1 == n {print int($2)}'; }

for i in $(seq 20); do
  value "$i" "$T/v"
  expect 0 store put "k$i" "$T/v"
done

# The master stands still for twice its --client-ttl.
kill -STOP "${PIDS[master]}"
fault_time 3000
expect 3 store stat --timeout 100ms
kill -CONT "${PIDS[master]}"
for i in $(seq 20); do
  value "$i" "$T/v"
  expect 0 store get "k$i" --out "$T/got" --verify always
  cmp -s "$T/v" "$T/got" || die "k$i has other bytes"
done
[ "$(metric mc_store_nodes_expired_total)" = 0 ] || die "a master that stood still gave nodes up"

# Writers are stopped in the middle, past --put-discard, while others need the room. Two stop by
# themselves in their copies; when the others stop is chance.
declare -a writers=()
echo '{"transport": "shm", "op": "write", "stop": true}' >"$T/stop"
for n in 1 2; do
  "$MC_BIN/late-writer" --master "$MASTER" --key "late$n" --bytes 4MiB --fault "$T/stop" >"$T/late" 2>&1 </dev/null &
  writers+=($!)
  until_true 60 "a writer did not stop in its copy" stands $!
done
blob 12000000 777 "$T/large"
for n in $(seq 10); do
  "$MC_BIN/mc-store" put "large$n" "$T/large" --master "$MASTER" >/dev/null 2>&1 </dev/null &
  writers+=($!)
  fault_time $((RANDOM % 60 + 10))
  kill -STOP $! 2>/dev/null || true
done
discarded() { [ "$(metric mc_store_puts_discarded_total)" -ge 2 ]; }
for i in $(seq 21 120); do
  value "$i" "$T/v"
  store put "k$i" "$T/v" --put-wait "$(ms 10000)" >/dev/null 2>"$T/err" || die "put k$i: $(cat "$T/err")"
  [ $i = 70 ] || continue
  until_true 30 "the stopped writers' puts were not discarded" discarded
  for p in "${writers[@]}"; do kill -CONT "$p" 2>/dev/null || true; done
done
for p in "${writers[@]}"; do  # some stop again, at each piece of their value
  while kill -CONT "$p" 2>/dev/null; do pause_briefly; done
  wait "$p" || true
done
there=0
listed=" $(store ls k --output json | jq -r .key | tr '\n' ' ')"
for i in $(seq 120); do
  [[ $listed = *" k$i "* ]] || continue
  store get "k$i" --out "$T/got" --verify never >/dev/null 2>&1 || continue
  there=$((there + 1))
  value "$i" "$T/v"
  cmp -s "$T/v" "$T/got" || die "k$i has a stopped writer's bytes"
done
[ $there -gt 15 ] || die "only $there of 120 are there"
for n in $(seq 10); do
  store get "large$n" --out "$T/got" --verify never >/dev/null 2>&1 || continue
  cmp -s "$T/large" "$T/got" || die "large$n has other bytes"
done

# A node dies under readers of values that are on both: in a full pool some would have one replica.
for prefix in k large; do store rm --prefix $prefix --force >/dev/null; done
"$MC_BIN/mc-store" bench --master "$MASTER" --replicas 2 --value 256KiB --count 8 --for 4s \
  --output json >"$T/gets" 2>"$T/gets.err" </dev/null &
reader=$!
until_true 30 "nothing was put" grep -q '"op":"put"' "$T/gets"
kill_9 a
gone() { [ "$(metric mc_store_nodes)" = 1 ]; }
hits() { metric mc_store_hits_total; }
hits_over() { [ "$(hits)" -gt "$1" ]; }
kill -0 $reader 2>/dev/null || die "the gets had ended before the node died"
before=$(hits)
until_true 30 "nothing was got beside the dead node" hits_over "$before"
until_true 30 "the node that died is not given up" gone
wait $reader || die "gets failed beside a dying node: $(cat "$T/gets.err")"
jq -es '.[] | select(.op == "get") | .wrong == 0 and .missing == 0 and ."p99-us" < 1000000' \
  "$T/gets" >/dev/null || die "gets suffered from a dying node: $(cat "$T/gets")"
