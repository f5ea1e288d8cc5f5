#!/usr/bin/env bash
# Writers that are later than any patience destroy no acknowledged value: their room is given on only
# once nothing of theirs can land there (F1, F2).
. "$(dirname "$0")/../common.inc"
. "$(dirname "$0")/store.inc"

master_up
node_up a --size 6MiB --transports tcp
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

# A frame that drips.
"$MC_BIN/late-writer" --master "$MASTER" --bytes 1MiB --ready "$T/ready" --go "$T/go" >"$T/late" 2>&1 </dev/null &
late=$!
until_true 20 "the late writer was granted nothing" test -e "$T/ready"
until_true 30 "its room was never given on" released 1
for i in $(seq 12); do put "$i"; done
touch "$T/go"
wait $late || true
check 1 12
! grep -q stored "$T/late" || die "the late write was taken"
