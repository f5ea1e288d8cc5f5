#!/usr/bin/env bash
# A closed terminal ends daemons as SIGTERM does: drained, with status 0, their announcements removed.
# Under nohup they do not see it.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/../daemons.inc"
launch master env --default-signal=HUP "$MC_BIN/mc-master" --listen 127.0.0.1:0 --http 127.0.0.1:0 --events 127.0.0.1:0
launch node env --default-signal=HUP "$MC_BIN/mc-store" serve --master "$(address master)" --listen 127.0.0.1:0 --data 127.0.0.1:0 \
  --http 127.0.0.1:0 --size 64MiB
launch prefill env --default-signal=HUP "$MC_BIN/mc-prefill" --model tiny --listen 127.0.0.1:0 --data 127.0.0.1:0 --http 127.0.0.1:0
hang_up() {
  local rc=0
  kill -HUP "${PIDS[$1]}"
  wait "${PIDS[$1]}" || rc=$?
  unset "PIDS[$1]"
  [ $rc = 0 ] || die "$1 ended with status $rc on SIGHUP: $(tail -n 5 "$T/$1.log")"
  [ ! -e "$T/$1.json" ] || die "$1 left its announcement"
}
for name in prefill node master; do hang_up $name; done

# The lowest bit of these masks is SIGHUP.
launch master env --ignore-signal=HUP "$MC_BIN/mc-master" --listen 127.0.0.1:0 --http 127.0.0.1:0 --events 127.0.0.1:0
while read -r name mask; do
  case $name in
  SigBlk:) (((0x$mask & 1) == 0)) || die "SIGHUP is blocked where it was ignored: $mask" ;;
  SigIgn:) (((0x$mask & 1) == 1)) || die "SIGHUP is no longer ignored: $mask" ;;
  esac
done <"/proc/${PIDS[master]}/status"
stop master
