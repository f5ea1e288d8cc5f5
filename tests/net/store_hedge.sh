#!/usr/bin/env bash
# A replica's node is stopped: reads over the network that wait for it go to the other one, and
# none takes as long as it takes to give a node up. Clients that know several masters do not wait for
# those that are gone, and name all of them when there is none.
. "$(dirname "$0")/../common.inc"
. "$(dirname "$0")/store.inc"

master_up --suspect-after 20s --client-ttl 30s
for n in a b; do node_up "$n" --size 64MiB --transports tcp --peer-timeout 5s; done

hits() {
  curl -s "http://$(jq -r .http "$T/master.json")/metrics" |
    awk '/^mc_store_hits_total/ {hits = $2} END {print hits + 0}'
}
hits_over() { [ "$(hits)" -gt "$1" ]; }
stands() { grep -q '^State:.T' "/proc/$1/status"; }
more_is_got() { until_true 30 "nothing is got while a node is stopped" hits_over $(($(hits) + 10)); }
# gets_beside_a_stop PASSES FLAGS...   gets with these flags. In the middle of them each node is stopped
# until PASSES is over. Results are in $T/gets. A read that waits for a node that is stopped takes the 3 s
# of --peer-timeout.
gets_beside_a_stop() {
  local passes=$1 before reader
  shift
  "$MC_BIN/mc-store" bench --master "$MASTER" --replicas 2 --value 256KiB --count 8 --for "$((12 * SLOW))s" \
    --timeout 20s --transports tcp --output json "$@" >"$T/gets" 2>"$T/gets.err" &
  reader=$!
  before=$(hits)
  until_true 30 "nothing was put" grep -q '"op":"put"' "$T/gets"
  until_true 30 "nothing was got" hits_over $((before + 200))
  for node in a b; do  # one of them is the one that is read
    kill -STOP "${PIDS[$node]}"
    $passes
    stands "${PIDS[$node]}" || die "$node was not stopped"
    kill -CONT "${PIDS[$node]}"
    until_true 30 "$node does not answer" curl -sf "http://$(jq -r .http "$T/$node.json")/ready"
  done
  wait $reader || die "the gets failed: $(cat "$T/gets.err")"
  cat "$T/gets"
}
# Without hedges they do wait: so it is hedges that help below, and no machine too slow to read at all.
longer_than_a_read_waits() { fault_time 3500; }
gets_beside_a_stop longer_than_a_read_waits --no-hedge
jq -es '.[] | select(.op == "get") | .hedged == 0 and .wrong == 0 and ."max-us" >= 2900000' "$T/gets" >/dev/null ||
  die "without hedges no read waited for the node that was stopped: $(cat "$T/gets")"
gets_beside_a_stop more_is_got
jq -es '.[] | select(.op == "get") | .wrong == 0 and .missing == 0' "$T/gets" >/dev/null || die "wrong bytes"
jq -es '.[] | select(.op == "get") | .hedged > 0 and ."max-us" < 3000000' "$T/gets" >/dev/null ||
  die "reads waited for the node that was stopped: $(cat "$T/gets")"

# What is read again comes out of this process's memory, and the master hears of it all the same.
expect 0 "$MC_BIN/mc-store" bench --master "$MASTER" --value 256KiB --count 8 --for 1s --transports tcp \
  --near-cache 16MiB --output json
jq -es '.[] | select(.op == "get") | .wrong == 0 and .near > 100' "$T/out" >/dev/null ||
  die "nothing was read near: $(cat "$T/out")"

# A dead master first in the list costs no time.
for _ in 1 2 3 4 5; do
  start=$(date +%s%N)
  expect 0 "$MC_BIN/mc-store" stat --master "127.0.0.1:1,$MASTER"
  took=$((($(date +%s%N) - start) / 1000000))
  [ $took -ge $((900 * SLOW)) ] || break
done
[ $took -lt $((900 * SLOW)) ] || die "a dead master cost $took ms"
expect 3 "$MC_BIN/mc-store" stat --master 127.0.0.1:1,127.0.0.1:2 --timeout 500ms
grep -q '127.0.0.1:1,127.0.0.1:2' "$T/err" || die "not all that were asked are named: $(cat "$T/err")"
