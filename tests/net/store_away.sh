#!/usr/bin/env bash
# Nodes that are away and come back, that end, and that drain, with disks: what was removed stays
# removed, what was gathered is written, what was drained is elsewhere.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/store.inc"

DISK=(--size 16MiB --ssd-size 256MiB --ssd-backend file --ssd-staging 8MiB)
disks() { store stat --output json | jq -e ".disks == $1" >/dev/null; }
ssd_node() {
  local name=$1
  shift
  node_up "$name" --ssd "$T/$name.ssd" "${DISK[@]}" "$@"
  until_true 30 "the disk of $name is not mounted" disks 1
}
nodes() { store stat --output json | jq -e "(.nodes | length) == $1" >/dev/null; }
right() { store get "$1" --out "$T/back" --verify always "${@:3}" && cmp "$2" "$T/back"; }
on_disk() { store stat --output json | jq -e ".[\"disk-objects\"] == $1" >/dev/null; }
for i in 1 2 3 4; do blob $((i * 30011)) "$i" "$T/v$i"; done

master_up --offload eager
node_up m --size 16MiB

# Stopped past its time to live, with an object in its memory and another on its disk.
ssd_node a --ssd-flush 20ms
store put gone "$T/v1" --prefer a >/dev/null
store put kept "$T/v2" --prefer a >/dev/null
until_true 30 "nothing is on the disk" on_disk 2
kill -STOP "${PIDS[a]}"
until_true 30 "a node that is stopped is not given up" nodes 1
expect 1 store rm gone
expect 1 store exists gone kept
kill -CONT "${PIDS[a]}"
until_true 30 "the node did not come back" nodes 2
until_true 30 "what it held did not come back" right kept "$T/v2"
expect 1 store exists gone
expect 0 store put gone "$T/v3" --prefer m
right gone "$T/v3" || die "an old value came back"

# What has gathered is written when the node ends.
stop a
ssd_node a --ssd-flush 1h
store put late "$T/v4" --prefer a >/dev/null
store put late "$T/v4" --prefer a --tenant other >/dev/null
gathered() { store stat --output json | jq -e '.offloading > 200000' >/dev/null; }
until_true 30 "no work for the disk" gathered
stop a
ssd_node a --ssd-flush 20ms
until_true 30 "what had gathered was not written" right late "$T/v4"
# Read from the disk, it is taken into memory: of its own tenant.
right late "$T/v4" --tenant other || die "a tenant's value differs"
promoted() { store ls late --tenant other --output json | jq -e '.replicas == 1' >/dev/null; }
until_true 30 "a tenant's object was not promoted" promoted

# Told to end with time to drain: all of it is elsewhere, its disk is empty.
for i in 1 2 3 4; do store put "d$i" "$T/v$i" --prefer a >/dev/null; done
until_true 30 "nothing is on the disk" on_disk 7
stop a
ssd_node a --ssd-flush 20ms --drain-on-exit 20s
until_true 30 "the disk is not known" on_disk 7
stop a
[ "$(find "$T/a.ssd" -name '*.obj' | wc -l)" = 0 ] || die "left: $(ls -R "$T/a.ssd")"
for i in 1 2 3 4; do right "d$i" "$T/v$i" || die "d$i was lost by the drain"; done
right late "$T/v4" --tenant other || die "a tenant's object was lost by the drain"
# A look at rates, for scripts; an interval that is none is refused.
store put again "$T/v2" >/dev/null
expect 0 store top --once --interval 50ms --output json
jq -e '.objects > 4 and (.nodes | length) == 1 and ."puts-per-s" >= 0' "$T/out" >/dev/null ||
  die "top: $(cat "$T/out")"
expect 0 store top --once --interval 50ms
grep -q '^m .*ready' "$T/out" || die "top: $(cat "$T/out")"
expect 2 store top --once --interval 0s
# Alone, a node that drains is not waited for.
stop m
node_up last --size 16MiB --drain-on-exit 1h
expect 0 store put x "$T/v1"
stop last
