#!/usr/bin/env bash
# Nodes with and without disks and nothing but defaults (F4, F136, F138): four writers put five times what
# memory holds. No put fails, and what is read back is what was put. With on-slow-offload wait nothing that
# was stored is lost.
. "$(dirname "$0")/../common.inc"
. "$(dirname "$0")/store.inc"

VALUE=262144 COUNT=640  # 160 MiB into 32 MiB
cluster() {  # the node's disk, or nothing; the master's flags
  local disk=$1
  shift
  MASTER=127.0.0.1:0
  launch master "$MC_BIN/mc-master" --listen "$MASTER" --http 127.0.0.1:0 "$@"
  MASTER=$(jq -r .control "$T/master.json")
  launch a "$MC_BIN/mc-store" serve --listen 127.0.0.1:0 --http 127.0.0.1:0 --name a \
    --master "$MASTER" --size 32MiB ${disk:+--ssd "$disk" --ssd-size 2GiB}
}
bench() {
  store bench --value $VALUE --count $COUNT --threads 4 --verify always --output json "$@"
}

# bench exits with 1 if a put failed, and with 4 if a value came back with other bytes.
writers() {
  rc=0
  bench --for 1s >"$T/bench" 2>"$T/err" || rc=$?
  [ $rc = 0 ] || die "four writers, $1, all defaults: exit $rc: $(cat "$T/err")"
  jq -se 'all(.wrong == 0) and length == 2' "$T/bench" >/dev/null || die "$(cat "$T/bench")"
  store stat --output json >"$T/stat"
  jq -e '."evicted-objects" > 0' "$T/stat" >/dev/null || die "$(cat "$T/stat")"
  stop a
  stop master
}
cluster "$T/ssd"
writers 'a disk'
cluster ''
writers 'no disk'

# Puts may have to wait for the disk, but what was stored is in memory or there.
cluster "$T/other" --on-slow-offload wait
bench --for 2s --put-wait "$(ms 20000)" >"$T/bench" 2>"$T/err" || die "wait: $(cat "$T/err")"
jq -se 'all(.wrong == 0 and .missing == 0)' "$T/bench" >/dev/null || die "lost: $(cat "$T/bench")"
stop a
stop master
