#!/usr/bin/env bash
# Other protocol versions, lengths that lie and plain noise at every port of every daemon: each gets
# an error or loses its connection, and the daemon serves on.
source "$(dirname "$0")/../common.inc"
names=$(sed -n 's/.*kName = "\([^"]*\)".*/\1/p' "$MC_SOURCE"/lib/{store,serve,xfer}/messages.h | sort -u)
[ "$(wc -w <<<"$names")" -ge 30 ] || die "only these messages were found: $names"

pids=()
hostile_down() {
  [ ${#pids[@]} = 0 ] || kill -9 "${pids[@]}" 2>/dev/null || true
  rm -rf "$T"
}
trap hostile_down EXIT
up() { # NAME PROGRAM FLAGS...: starts it and waits until it is ready
  local name=$1 deadline=$((SECONDS + 20))
  shift
  "$MC_BIN/$1" "${@:2}" --listen 127.0.0.1:0 --http 127.0.0.1:0 --announce "$T/$name.json" \
    >"$T/$name.log" 2>&1 </dev/null &
  pids+=($!)
  until [ -s "$T/$name.json" ]; do
    [ $SECONDS -lt $deadline ] || die "$name was not ready within 20 s: $(cat "$T/$name.log")"
    read -rt 0.05 <> <(:) || true
  done
}
field() { jq -r "$2" "$T/$1.json"; }

up master mc-master
master=$(field master .control)
up store mc-store serve --size 4MiB --master "$master"
up conductor mc-conductor
worker=(--pool 16MiB --master "$master" --conductor "$(field conductor .control)")
up prefill mc-prefill "${worker[@]}"
up decode mc-decode "${worker[@]}"
up xfer mc-xfer serve --size 4MiB

for name in master store conductor prefill decode xfer; do
  # shellcheck disable=SC2086  # one word a message
  expect 0 timeout 60 python3 "$MC_SOURCE/tests/cli/hostile.py" "$T/$name.json" $names
  expect 0 curl -fsS -m 10 "http://$(field $name .http)/live"
  expect 0 curl -fsS -m 10 "http://$(field $name .http)/metrics"
  awk '/^mc_rpc_malformed_total/ { n += $2 } END { exit n < 8 }' "$T/out" ||
    die "$name does not count malformed messages: $(grep malformed "$T/out")"
done

# Still a cluster: a request goes through all of it.
deadline=$((SECONDS + 20))
until curl -fsS -m 10 "http://$(field conductor .http)/v1/completions" \
  -d '{"model":"tiny","prompt":"still there?","max_tokens":2}' >"$T/out" 2>"$T/err"; do
  [ $SECONDS -lt $deadline ] || die "the cluster does not serve: $(cat "$T/err" "$T/out")"
  read -rt 0.05 <> <(:) || true
done
expect 0 "$MC_BIN/mc-store" put k "$T/out" --master "$master"

for ((i = ${#pids[@]} - 1; i >= 0; --i)); do
  kill -TERM "${pids[i]}"
  wait "${pids[i]}" || die "a daemon exited $? after SIGTERM"
done
pids=()
