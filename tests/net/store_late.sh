#!/usr/bin/env bash
# Writers that are later than any patience destroy no acknowledged value: their room is given on only
# once nothing of theirs can land there (F1, F2).
. "$(dirname "$0")/../common.inc"
. "$(dirname "$0")/store.inc"

master_up
node_up a --size 6MiB
metric() { curl -s "http://$(jq -r .http "$T/$1.json")/metrics" | awk -v n="$2" '$1 == n {print int($2)}'; }
released() { [ "$(metric master master_put_start_release_cnt)" -ge "$1" ]; }
value() { blob 900000 "$1" "$2"; }
put() {
  value "$1" "$T/v"
  store put "k$1" "$T/v" --put-wait "$(ms 10000)" >/dev/null 2>"$T/err" || die "put k$1: $(cat "$T/err")"
}
check() {  # what was acknowledged is evicted, or is as it was put
  local there=0 rc
  for i in $(seq "$1" "$2"); do
    rc=0
    store get "k$i" --out "$T/got" --verify always >/dev/null 2>"$T/err" || rc=$?
    ! grep -qi corrupt "$T/err" || die "k$i has a late writer's bytes: $(cat "$T/err")"
    [ $rc = 0 ] || continue
    there=$((there + 1))
    value "$i" "$T/v"
    cmp -s "$T/v" "$T/got" || die "k$i has other bytes"
  done
  [ $there -ge 4 ] || die "only $there values are there"
}

late_writer() {
  rm -f "$T/ready" "$T/go"
  "$MC_BIN/late-writer" --master "$MASTER" --key "$1" --bytes 1MiB --ready "$T/ready" --go "$T/go" \
    >"$T/late" 2>&1 </dev/null &
  late=$!
  until_true 20 "the late writer was granted nothing" test -e "$T/ready"
}
go_on() {
  touch "$T/go"
  wait $late || true
  ! grep -q stored "$T/late" || die "the late write was taken"
}

# A frame that drips.
late_writer late1
until_true 30 "its room was never given on" released 1
for i in $(seq 12); do put "$i"; done
go_on
check 1 12

# The same, and a master that knows nothing of its grant.
late_writer late2
kill_9 master
master_up
for i in $(seq 21 32); do put "$i"; done
go_on
check 21 32

# A process that stands still in its copy over shared memory, in each piece of the value: its room is not
# given on, the rest is.
echo '{"transport": "shm", "op": "write", "stop": true}' >"$T/stop"
# On a busy machine its two seconds may be over before it writes: three goes.
stands() { grep -q '^State:.T' "/proc/$late/status" 2>/dev/null; }
stands_or_ended() { stands || ! kill -0 "$late" 2>/dev/null; }
for go in 1 2 3; do
  "$MC_BIN/late-writer" --master "$MASTER" --key late3 --bytes 1MiB --time 2s --fault "$T/stop" \
    >"$T/late" 2>&1 </dev/null &
  late=$!
  until_true 20 "the writer did not stop" stands_or_ended
  ! stands || break
  [ "$go" -lt 3 ] || die "the writer did not stop: $(cat "$T/late")"
done
until_true 30 "its grant was not given up" released 1
for i in $(seq 41 52); do put "$i"; done
while kill -CONT $late 2>/dev/null; do pause_briefly; done
wait $late || true
check 41 52
