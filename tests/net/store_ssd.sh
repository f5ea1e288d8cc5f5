#!/usr/bin/env bash
# Nodes with disks and masters that wait for them: more than memory holds, kill -9 and restart during puts and gets, a reader that
# stops past its lease, full and newer folders: what comes back is what was put, or an error.
. "$(dirname "$0")/../common.inc"
. "$(dirname "$0")/store.inc"

SSD=(--ssd-flush 50ms --ssd-staging 16MiB --ssd-lease 200ms)
ssd_node() { local name=$1; shift; node_up "$name" --ssd "$T/$name.ssd" "${SSD[@]}" "$@"; }
# value KEY FILE: a value that its key determines
value() { blob 700001 "$((16#$(printf %s "$1" | md5sum | head -c 8)))" "$2"; }
right() {
  store get "$1" --out "$T/got.$BASHPID" --verify always >/dev/null 2>&1 || return 1
  value "$1" "$T/want.$BASHPID"
  cmp -s "$T/got.$BASHPID" "$T/want.$BASHPID" || { echo "$1" >>"$T/wrong"; return 2; }
}
disk_objects() { store stat --output json | jq -e "$1" >/dev/null; }

master_up --on-slow-offload wait
A=(--size 16MiB --ssd-size 2GiB --ssd-backend bucket --ssd-bucket 8MiB)
B=(--size 16MiB --ssd-size 1GiB --ssd-backend offset)
ssd_node a "${A[@]}"
ssd_node b "${B[@]}"

# Three times what memory holds; all of it is there.
for i in $(seq 96); do
  value "k$i" "$T/v"
  store put "k$i" "$T/v" --put-wait "$(ms 20000)" >/dev/null || die "put k$i failed"
done
for i in $(seq 96); do right "k$i" || die "k$i did not come back"; done
store df --output json | jq -es 'map(select(.tier == "ssd")) | length == 2' >/dev/null || die "df"
[ "$(store ls k | wc -l)" = 96 ] || die "ls shows $(store ls k | wc -l) of 96"

# A reader that is stopped past its lease gets its own bytes or none, while others use the staging.
for n in $(seq 12); do
  "$MC_BIN/mc-store" get "k$n" --out "$T/stopped" --verify always --master "$MASTER" \
    >/dev/null 2>&1 </dev/null &
  p=$!
  fault_time $((n * 5 + 10))
  kill -STOP $p 2>/dev/null || true
  for i in 90 91 92; do right "k$((i - n))" || true; done
  fault_time 300
  kill -CONT $p 2>/dev/null || true
  if wait $p; then
    value "k$n" "$T/v"
    cmp "$T/stopped" "$T/v" || die "a reader that was stopped got other bytes"
  fi
done

# kill -9 and start again, while others put and get. What is on disks now is there afterwards (F139).
store ls k --output json | jq -r 'select(.disks > 0) | .key' | sort >"$T/on_disk"
[ "$(wc -l <"$T/on_disk")" -ge 40 ] || die "only $(wc -l <"$T/on_disk") of 96 objects are on disks"
writer() {
  for i in $(seq 1 400); do
    [ -e "$T/stop" ] && return
    value "w$i" "$T/w"
    store put "w$i" "$T/w" --timeout 2s >/dev/null 2>&1 || true
  done
}
reader() {
  while [ ! -e "$T/stop" ]; do
    local rc=0
    right "w$((RANDOM % 60 + 1))" || rc=$?
    right "k$((RANDOM % 96 + 1))" || rc=$?
  done
}
writer & w=$!
reader & r=$!
for _ in 1 2 3; do
  kill_9 a
  ssd_node a "${A[@]}"
  kill_9 b
  ssd_node b "${B[@]}"
done
touch "$T/stop"
wait $w $r 2>/dev/null || true
[ ! -e "$T/wrong" ] || die "wrong bytes of: $(cat "$T/wrong")"
until_true 30 "the disks were not mounted again" disk_objects '.disks == 2'
for i in $(seq 96); do
  rc=0
  right "k$i" || rc=$?
  [ $rc -ne 2 ] || die "wrong bytes of k$i"
  [ $rc -eq 0 ] || ! grep -qx "k$i" "$T/on_disk" || die "k$i was on a disk and did not outlive the kills"
done

# A folder of a newer version is refused, another backend's too, and one in use.
stop b
expect 2 "$MC_BIN/mc-store" serve --master "$MASTER" --listen 127.0.0.1:0 --http 127.0.0.1:0 \
  --name x --size 1MiB --ssd "$T/b.ssd" --ssd-size 1GiB --ssd-backend file
grep -q "belongs to backend 'offset'" "$T/err" || die "$(cat "$T/err")"
expect 0 "$MC_BIN/mc-store" verify --ssd "$T/b.ssd" --ssd-size 1GiB --ssd-backend offset
grep -q ' 0 damaged' "$T/out" || die "verify: $(cat "$T/out")"
expect 1 "$MC_BIN/mc-store" verify --ssd "$T/a.ssd" --ssd-size 2GiB
grep -q 'in use by another process' "$T/err" || die "$(cat "$T/err")"
stop a
bucket=$(ls "$T"/a.ssd/*.bucket | head -1)
printf '!' | dd of="$bucket" bs=1 seek=5000 conv=notrunc status=none
expect 4 "$MC_BIN/mc-store" verify --ssd "$T/a.ssd" --ssd-size 2GiB
stop master
