#!/usr/bin/env bash
# Other protocol versions, lengths that lie and plain noise at every port of every daemon: each gets
# an error or loses its connection, and the daemon serves on.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/../daemons.inc"
names=$(grep -rhoP 'kName = "\K[^"]*' "$MC_SOURCE"/lib --include='*messages.h' | sort -u)
[ "$(wc -w <<<"$names")" -ge 60 ] || die "only these messages were found: $names"

up() { # NAME PROGRAM FLAGS...
  launch "$1" "$MC_BIN/$2" "${@:3}" --listen 127.0.0.1:0 --http 127.0.0.1:0
}
field() { jq -r "$2" "$T/$1.json"; }

up master mc-master
master=$(address master)
up store mc-store serve --size 4MiB --master "$master" --ssd "$T/ssd" --ssd-size 64MiB
up conductor mc-conductor
worker=(--pool 16MiB --master "$master" --conductor "$(address conductor)")
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
served() {
  curl -fsS -m 10 "http://$(field conductor .http)/v1/completions" \
    --json '{"model":"tiny","prompt":"still there?","max_tokens":2}' -o "$T/out"
}
until_true 30 "the cluster does not serve" served
expect 0 "$MC_BIN/mc-store" put k "$T/out" --master "$master"

for name in xfer decode prefill conductor store master; do stop $name; done
