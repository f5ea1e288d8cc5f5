#!/usr/bin/env bash
# F121: a daemon's core dump has no memory, which holds keys and values.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/../daemons.inc"
launch master "$MC_BIN/mc-master" --listen 127.0.0.1:0 --http 127.0.0.1:0 --events 127.0.0.1:0
filter=$(cat "/proc/${PIDS[master]}/coredump_filter")
[ "$filter" = 00000000 ] || die "dumps memory: $filter"
for unit in "$(dirname "$0")"/../../configs/systemd/*.service; do
  grep -qx LimitCORE=0 "$unit" || die "$unit has no LimitCORE=0"
done
stop master
