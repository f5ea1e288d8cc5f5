#!/usr/bin/env bash
# Unknown peers at mc-master's control port: a message without end takes little memory, and half greetings in
# any number keep nobody out and use no CPU.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/../daemons.inc"

# shellcheck disable=SC2016  # expanded by that shell
launch master bash -c 'ulimit -n 1024 && exec "$@"' - "$MC_BIN/mc-master" --listen 127.0.0.1:0 \
  --http 127.0.0.1:0 --events 127.0.0.1:0
master=$(address master)
launch store "$MC_BIN/mc-store" serve --size 16MiB --master "$master" --listen 127.0.0.1:0 --http 127.0.0.1:0
pid=$(jq -r .pid "$T/master.json")
live() { curl -fsS -m 10 "http://$(jq -r .http "$T/master.json")/live"; }
put() { "$MC_BIN/mc-store" put "$1" "$T/value" --master "$master"; }
peak_mib() { awk '/^VmHWM/ { print int($2 / 1024) }' "/proc/$pid/status"; }
cpu_ticks() { awk '{ print $14 + $15 }' "/proc/$pid/stat"; }
echo value >"$T/value"
until_true 30 "nothing can be put" put first

# ---- one unfinished message (F20): before, it took all of its 1,200 MiB
before=$(peak_mib)
expect 0 timeout 100 python3 "$MC_SOURCE/tests/cli/control_port.py" more "$master"
grown=$(($(peak_mib) - before))
[ $grown -lt 400 ] || die "the master grew by $grown MiB"
expect 0 put second

# ---- more half greetings than it may have files (F21)
mkfifo "$T/hold"
before=$(cpu_ticks)
python3 "$MC_SOURCE/tests/cli/control_port.py" half "$master" <"$T/hold" >"$T/held" &
# shellcheck disable=SC2154  # a key, not a variable
PIDS[holder]=$!
exec 9>"$T/hold"
until_true 60 "the connections are not open" grep -q open "$T/held"
expect 0 put third
expect 0 live
fault_time 1000
used=$(($(cpu_ticks) - before))
[ $used -lt $((100 * SLOW)) ] || die "$used ticks of CPU for half greetings"
exec 9>&-
wait "${PIDS[holder]}" || die "the peer ended with status $?"
unset "PIDS[holder]"
expect 0 live
stop store
stop master
