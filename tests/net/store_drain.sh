#!/usr/bin/env bash
# A node drains to the end, leased and pinned objects too, and nothing is lost; copies, moves, pins,
# tenants and reasons, through real processes and real bytes.
. "$(dirname "$0")/../common.inc"
. "$(dirname "$0")/store.inc"

master_up --tenant-quotas small=1MiB --slow-start 0s
node_up a --size 24MiB --domain rack1
expect 0 store why nothing
grep -q 'not stored' "$T/out" || die "why of an unknown key: $(cat "$T/out")"

for i in $(seq 12); do
  blob $((i * 90019 + 1)) "$i" "$T/v$i"
  store put "k$i" "$T/v$i" >/dev/null
done
: >"$T/empty"
store put none "$T/empty" >/dev/null
expect 0 store pin k3 --ttl 1h
expect 1 store rm k3
grep -q 'pinned' "$T/err" || die "rm of a pinned key: $(cat "$T/err")"
node_up b --size 24MiB --domain rack2

# One more replica, then the first is given up.
expect 0 store cp k1 --to b
expect 0 store replicas k2 2
expect 1 store mv k2 --from a --to b
grep -q 'has one already' "$T/err" || die "moved to a node that has it: $(cat "$T/err")"
store get k1 --out "$T/back" --verify always
cmp "$T/v1" "$T/back" || die "k1 differs"

store get k5 --out "$T/back"  # leased
expect 0 store drain a
grep -q 'a: drained, 0 object(s)' "$T/out" || die "drain: $(cat "$T/out")"
store stat --output json >"$T/stat"
jq -e '.nodes[] | select(.name == "a") | .used == 0 and .state == "drained"' "$T/stat" >/dev/null ||
  die "not empty: $(cat "$T/stat")"
stop a
for i in $(seq 12); do
  store get "k$i" --out "$T/back" --verify always
  cmp "$T/v$i" "$T/back" || die "k$i differs after the drain"
done
[ "$(store get none | wc -c)" = 0 ] || die "the empty value has bytes"
expect 0 store why k7
grep -q 'moved on b' "$T/out" || die "why does not tell that it moved: $(cat "$T/out")"

# The pin outlives the master.
kill_9 master
master_up --tenant-quotas small=1MiB
until_true 30 "the master is not whole" store exists k3
expect 1 store rm k3
expect 0 store unpin k3
until_true 30 "k3 was not removed" store rm k3

# A tenant at its quota evicts its own; classes that are not kept move no bytes.
for i in 1 2 3 4 5 6; do store put "t$i" "$T/v3" --tenant small >/dev/null; done
expect 1 store exists t1 --tenant small
expect 0 store exists t6 --tenant small
expect 1 store exists t6
expect 1 store put e "$T/v1" --class ephemeral
grep -q 'not admitted' "$T/err" || die "ephemeral: $(cat "$T/err")"

expect 0 store rm --prefix k
store ls >"$T/ls"
[ "$(wc -l <"$T/ls")" = 1 ] || die "left: $(cat "$T/ls")"
curl -s "${STATE%/state}/metrics" >"$T/metrics"
for name in 'segment_allocated_bytes{segment="b"}' master_evicted_key_count mc_store_copies_total; do
  grep -qF "$name" "$T/metrics" || die "no $name in /metrics"
done
