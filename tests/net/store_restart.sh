#!/usr/bin/env bash
# kill -9 of the master loses nothing; kill -9 of a node loses what it held, with a clear reason.
. "$(dirname "$0")/../common.inc"
. "$(dirname "$0")/store.inc"

master_up
node_up a --size 32MiB
node_up b --size 32MiB
for i in $(seq 20); do
  blob $((i * 50000)) "$i" "$T/v$i"
  expect 0 store put "k$i" "$T/v$i"
done
expect 0 store put both "$T/v20" --replicas 2
until_true 30 "k7 cannot be removed" store rm k7

kill_9 master
expect 3 store get k1 --timeout 1s
grep -q 'is it running' "$T/err" || die "no remedy for a master that is gone: $(cat "$T/err")"
epoch=$(jq -r .epoch "$T/master.json" 2>/dev/null || echo 0)
master_up
[ "$(jq -r .epoch "$T/master.json")" -ge "$epoch" ] || die "the epoch went back"

# At once, before the nodes are back: found all the same, and nothing is said to be absent that is not.
expect 0 store get k1 --out "$T/back" --verify always
cmp "$T/v1" "$T/back" || die "k1 differs right after the master's restart"
whole() { store stat --output json | jq -e '(.nodes | length) == 2 and .objects == 20' >/dev/null; }
until_true 30 "the master is not whole again" whole
for i in $(seq 20); do
  [ "$i" != 7 ] || continue
  expect 0 store get "k$i" --out "$T/back" --verify always
  cmp "$T/v$i" "$T/back" || die "k$i differs after the master's restart"
done
expect 1 store exists k7
expect 1 store get k7
grep -q "no key 'k7'" "$T/err" || die "a removed key after the rebuild: $(cat "$T/err")"
store stat --output json | jq -e '.rebuilding == ""' >/dev/null || die "a whole pool still rebuilds"

# All questions that a half known pool would answer wrongly wait for it.
for verb in "exists k1" "exists k1 k20 both" "ls both"; do
  kill_9 master
  master_up
  # The words are the verb and its operands.
  # shellcheck disable=SC2086
  expect 0 store $verb
  grep -q 'k1\|both' "$T/out" || die "$verb right after a restart: $(cat "$T/out")"
done

# A node that stays away: what it held is unavailable, with the reason, until it is given up.
node_up c --size 32MiB
expect 0 store put only-c "$T/v1" --prefer c
# Recorded by a and b in answer to heartbeats that told them of c.
for node in a b; do expect 0 store put "told-$node" "$T/v2" --prefer "$node"; done
kill_9 master
kill_9 c
usual=("${PERIODS[@]}")
PERIODS=(--client-ttl "$(ms 8000)" "${usual[@]:2}")
master_up
expect 3 store get only-c --timeout 1s
grep -q 'rebuilding: ' "$T/err" || die "no reason while a node is missing: $(cat "$T/err")"
expect 1 store get only-c --timeout "$(ms 30000)"
grep -q "no key 'only-c'" "$T/err" || die "a key of a lost node: $(cat "$T/err")"
kill_9 master
PERIODS=("${usual[@]}")
master_up
expect 0 store get k1 --out "$T/back" --verify always

expect 0 store put after "$T/v3"
expect 0 store get after --out "$T/back" --verify always

# A node dies: its objects are unavailable at once and gone after client-ttl; copies are served.
kill_9 a
expect 0 store get both --out "$T/back" --verify always
cmp "$T/v20" "$T/back" || die "the other replica differs"
for i in $(seq 6); do expect 0 store put "fresh$i" "$T/v$i"; done  # placed on the node that lives
for i in $(seq 20); do
  [ "$i" != 7 ] || continue
  rc=0
  store get "k$i" --out "$T/back" --verify always --timeout 3s 2>"$T/err" >/dev/null || rc=$?
  case $rc in
    0) cmp "$T/v$i" "$T/back" || die "k$i differs after a node died" ;;
    1) grep -q 'not-found' "$T/err" || die "k$i: $(cat "$T/err")" ;;
    3) ;;
    *) die "get k$i exited $rc: $(cat "$T/err")" ;;
  esac
done
one_node() { store stat --output json | jq -e '(.nodes | length) == 1' >/dev/null; }
until_true 30 "the dead node was never given up" one_node
expect 0 store put again "$T/v5"

# It comes back under its name, empty, and is used again.
node_up a --size 32MiB
store stat --output json | jq -e '(.nodes | length) == 2' >/dev/null || die "the node did not rejoin"
expect 0 store put there "$T/v5" --prefer a
expect 0 store get there --out "$T/back" --verify always
cmp "$T/v5" "$T/back" || die "a value on the node that rejoined differs"

# A master that never had nodes does not keep its first users waiting for long.
kill_9 master
export MASTER=127.0.0.1:0
master_up
expect 1 store exists k1 --timeout "$(ms 10000)"
