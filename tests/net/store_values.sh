#!/usr/bin/env bash
# Values of many sizes, by shared memory and by tcp, come back as they were put.
. "$(dirname "$0")/../common.inc"
. "$(dirname "$0")/store.inc"

master_up
node_up shm --size 96MiB
node_up tcp --size 96MiB --transports tcp

for size in 0 1 63 64 4095 4096 4097 65536 1000003 8388608 20000000; do
  blob $size $((size + 1)) "$T/value"
  for prefer in shm tcp; do
    expect 0 store put "k/$prefer/$size" "$T/value" --prefer $prefer
    expect 0 store get "k/$prefer/$size" --out "$T/back" --verify always
    cmp "$T/value" "$T/back" || die "a value of $size bytes on $prefer came back different"
  done
done

# Standard input and output; a second put of the key moves nothing and says so.
printf 'hello' | store put greeting | grep -q '^stored greeting'
[ "$(store get greeting)" = hello ] || die "standard output differs"
printf 'other' | store put greeting --output json | jq -e '.existed and .bytes == 0' >/dev/null ||
  die "a second put says that something was stored"
expect 0 store put greeting "$T/value"
grep -qx 'greeting is there already and stays as it is: nothing was stored' "$T/out" || die "$(cat "$T/out")"
expect 2 store put short "$T/value" --ttl 1h
grep -q -- '--ttl 1h is of a pin or of a context: give --pin soft' "$T/err" || die "$(cat "$T/err")"
[ "$(store get greeting)" = hello ] || die "a value changed after it was put"

# Two copies lie on two nodes.
expect 0 store put twice "$T/value" --replicas 2
store ls twice --output json | jq -e '.replicas == 2' >/dev/null || die "not two replicas"

# Looking and removing.
expect 0 store exists greeting
expect 1 store exists greeting nobody
grep -qx 'no nobody' "$T/out" || die "exists does not say which"
expect 0 store ls k/shm/ --limit 3
[ "$(wc -l <"$T/out")" = 3 ] || die "ls --limit 3 printed $(wc -l <"$T/out") lines"
expect 0 store stat --output json
jq -e '(.nodes | length) == 2 and .objects == 24' "$T/out" >/dev/null || die "stat: $(cat "$T/out")"
curl -fsS "$STATE" | jq -e '.objects == 24' >/dev/null || die "/state differs from stat"
until_true 30 "greeting cannot be removed after its lease" store rm greeting
expect 1 store get greeting
grep -q 'not-found' "$T/err" || die "a removed key is not not-found: $(cat "$T/err")"
expect 0 store rm --prefix k/ --force
expect 0 store ls k/
[ ! -s "$T/out" ] || die "objects left after rm --prefix"
metric() { curl -fsS "${STATE%/state}/metrics" | awk -v name="$1" '$1 == name { print $2 }'; }
[ "$(metric master_remove_all_requests_total)" = 0 ] || die "a prefix was counted as all"
expect 0 store rm --prefix '' --force
expect 0 store ls
[ ! -s "$T/out" ] || die "objects left after all were removed"
[ "$(metric master_remove_all_requests_total)" = 1 ] || die "removing all was not counted"
[ "$(metric master_remove_all_failures_total)" = 0 ] || die "removing all was counted as failed"

# Nodes and master end by themselves, with status 0, and take their announcements along.
stop shm
stop tcp
store stat --output json | jq -e '(.nodes | length) == 0' >/dev/null || die "a node did not unmount"
stop master
[ ! -e "$T/master.json" ] || die "the announcement outlived the master"
