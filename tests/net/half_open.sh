#!/usr/bin/env bash
# F103, a store: a network that is slow, that swallows everything for a while, or that forgets connections which
# both ends hold open. Each call through it ends by its deadline, nothing hangs, others are served
# meanwhile, and who was cut off is back without a restart.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/store.inc"
source "$(dirname "$0")/forwarder.inc"

# late STATUS COMMAND...: it ends with this status, and soon after its deadline of 500 ms
late() {
  local start=$SECONDS
  expect "$@"
  [ $((SECONDS - start)) -le $((10 * SLOW)) ] || die "'${*:2}' took $((SECONDS - start)) s"
}

master_up
network nodes "$MASTER"
network clients "$MASTER"
direct=$MASTER
MASTER=${VIA[nodes]} node_up a --size 64MiB
blob 3000000 1 "$T/value"

# ---- the store's clients
via() { MASTER=${VIA[clients]} store "$@"; }
say clients "delay 20"
expect 0 via put k "$T/value" --timeout 10s
expect 0 via get k --out "$T/back" --timeout 10s
cmp "$T/value" "$T/back"
say clients hold
for call in "stat" "put other $T/value" "get k --out $T/other" "rm k" "ls"; do
  # shellcheck disable=SC2086  # words of a command
  late 3 via $call --timeout "$(ms 500)"
  grep -q 'no answer within' "$T/err" || die "$call: unclear error: $(cat "$T/err")"
done
expect 0 store get k --out "$T/back" --timeout 10s
cmp "$T/value" "$T/back"
say clients pass
expect 0 via exists k --timeout 10s

# A client that lives on: its connection is forgotten in the middle, and it goes on over another one.
hits() { curl -fsS -m 10 "${STATE%/state}/metrics" | awk '/^mc_store_hits_total/ {n = $2} END {print n + 0}'; }
hits_over() { [ "$(hits)" -gt "$1" ]; }
began=$(hits)
MASTER=${VIA[clients]} store bench --value 64KiB --count 8 --for 100s --timeout "$(ms 2000)" \
  --transports tcp >"$T/bench.log" 2>&1 &
# shellcheck disable=SC2034,SC2154  # a key of a table that daemons.inc reads
PIDS[bench]=$!
until_true 30 "the bench gets nothing" hits_over $((began + 100))
before=$(opened clients)
say clients forget
until_true 30 "the bench opened no other connection" opened_since clients "$before"
until_true 30 "the bench does not go on" hits_over $(($(hits) + 100))
kill_9 bench

# ---- a node: it mounts again over a new connection, with what it holds
for fault in forget hold; do
  before=$(opened nodes)
  say nodes $fault
  gone() { ! MASTER=$direct store stat --output json | jq -e '.nodes[] | select(.name == "a" and .state == "ready")'; }
  [ $fault = forget ] || until_true 30 "the master does not miss a node that it cannot hear" gone
  [ $fault = forget ] || say nodes pass
  until_true 30 "$fault: the node opened no other connection" opened_since nodes "$before"
  back() { MASTER=$direct store get k --out "$T/back" && cmp "$T/value" "$T/back"; }
  until_true 30 "$fault: the node is not back with its values" back
done
stop a
stop master
