#!/usr/bin/env bash
# Connections of unknown peers at a data port: with few files or little memory the process lives, uses no
# CPU for them and serves meanwhile and after; hundreds that say their hello slowly lock nobody out.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/../daemons.inc"

# serve NAME LIMITS: mc-xfer serve with these limits of the shell
serve() {
  # shellcheck disable=SC2016  # expanded by that shell
  launch "$1" bash -c "ulimit $2"' && exec "$@"' - "$MC_BIN/mc-xfer" serve --size 4MiB \
    --listen 127.0.0.1:0 --http 127.0.0.1:0
}
field() { jq -r "$2" "$T/$1.json"; }
live() { curl -fsS -m 10 "http://$(field "$1" .http)/live"; }
moves() {
  timeout 120 "$MC_BIN/mc-xfer" bench "$(address "$1")" --transports tcp --op read --block 64KiB \
    --duration 100ms --peer-timeout "$(ms 3000)"
}
cpu_ticks() { awk '{ print $14 + $15 }' "/proc/${PIDS[$1]}/stat"; }

# hold NAME COUNT: so many unknown peers, until leave
hold() {
  rm -f "$T/hold" && mkfifo "$T/hold"
  python3 "$MC_SOURCE/tests/cli/data_port.py" "$(field "$1" '.data[0]')" "$2" <"$T/hold" >"$T/held" &
  # shellcheck disable=SC2154  # a key, not a variable
  PIDS[holder]=$!
  exec 9>"$T/hold"
  until_true 60 "$2 connections are not open" grep -q open "$T/held"
}
leave() {
  exec 9>&-
  wait "${PIDS[holder]}" || die "the holder of connections ended with status $?"
  unset "PIDS[holder]"
}

# ---- few files (F15)
serve files "-n 64"
hold files 90
expect 0 live files
expect 0 moves files
before=$(cpu_ticks files)
fault_time 2000
used=$(($(cpu_ticks files) - before))
[ $used -lt $((30 * SLOW)) ] || die "$used ticks of CPU for 90 connections that say nothing"
leave
until_true 10 "not live after they left" live files
expect 0 moves files
stop files

# ---- little memory (F14); the sanitizers map far more
if [ -z "${MC_SANITIZE:-}" ]; then
  serve memory "-v 3000000"
  hold memory 900
  expect 0 live memory
  expect 0 moves memory
  leave
  stop memory
fi

# ---- more than all connections that may be open (F17)
serve many "-n 4096"
hold many $((1100 / SLOW))
expect 0 moves many
expect 0 live many
leave
stop many
