#!/usr/bin/env bash
# mc-xfer bench and kv overwrite no memory that its owner needs.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/../daemons.inc"
xfer=$MC_BIN/mc-xfer
serve() { launch "$1" "$xfer" serve --listen 127.0.0.1:0 --http 127.0.0.1:0 "${@:2}"; }
short=(--block 4KiB --duration 20ms --output json)
pattern=(--layers 2 --blocks 2 --rounds 1 --output json)
unchecked() {
  jq -es 'length > 0 and all(.checked == false)' "$T/out" >/dev/null || die "$1: $(cat "$T/out")"
  grep -q 'does not offer its memory to be overwritten: nothing is checked' "$T/err" || die "$1: $(cat "$T/err")"
}
refused() {
  expect 2 "$xfer" "$@"
  grep -q -- '--op: writes would destroy what .* holds: --op read .* --overwrite' "$T/err" || die "$*: $(cat "$T/err")"
}

# The memory of a store holds values.
launch master "$MC_BIN/mc-master" --listen 127.0.0.1:0 --http 127.0.0.1:0
launch node "$MC_BIN/mc-store" serve --name node --master "$(address master)" --listen 127.0.0.1:0 --http 127.0.0.1:0 --size 64MiB
head -c 3000001 /dev/urandom >"$T/value"
expect 0 "$MC_BIN/mc-store" put key "$T/value" --master "$(address master)"
node=$(address node)
for verb in "bench $node ${short[*]}" "kv $node ${pattern[*]}"; do
  # shellcheck disable=SC2086
  expect 0 "$xfer" $verb --op read
  unchecked "$verb"
  # shellcheck disable=SC2086
  refused $verb --op write
done
refused bench "$node" "${short[@]}"
refused bench "$node" --mix high:read:4KiB,low:write:4KiB
refused bench "$node" --preset fig4
expect 0 "$MC_BIN/mc-store" get key --master "$(address master)" --out "$T/back"
cmp "$T/value" "$T/back" || die "a benchmark changed a value of the store"
expect 0 "$xfer" kv "$node" --op write --overwrite "${pattern[@]}" # who asks for it has it
jq -es 'all(.checked)' "$T/out" >/dev/null || die "--overwrite: $(cat "$T/out")"

# Nor are a file, what files are staged in, and memory that peers may only read.
head -c 1000000 /dev/urandom >"$T/file"
cp "$T/file" "$T/as-it-was"
serve file --size 0 --file "$T/file" --writable
mkdir "$T/root"
serve root --root "$T/root" --writable
serve shut --no-memory-writable
for name in file root shut; do
  expect 0 "$xfer" bench "$(address $name)" --op read "${short[@]}"
  unchecked $name
  refused bench "$(address $name)" --op write "${short[@]}"
done
cmp "$T/file" "$T/as-it-was" || die "a benchmark changed a file"
