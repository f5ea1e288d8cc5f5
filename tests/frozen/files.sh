#!/usr/bin/env bash
# Files that an older mc wrote are read, every value of them: a segment's index, an SSD folder of each
# backend, a trace, a model spec and a captured machine. tests/frozen/files was written at the
# commit before tests/frozen/list.txt was.
. "$(dirname "$0")/../common.inc"
files=$MC_SOURCE/tests/frozen/files
mkdir "$T/files" "$T/machine"
cp "$files"/*.json* "$T/files"
tar -xzf "$files/store.tar.gz" -C "$T/files"
tar -xzf "$files/machine.tar.gz" -C "$T/machine"
same() { # EXPECTED FILE
  diff -u "$files/$1" "$2" >&2 ||
    die "files of an older mc are read otherwise than tests/frozen/files/$1 has them: - was, + is now.
Users have such files: read them as before, also where a new version of the format is written"
}

expect 0 "$MC_BIN/frozen-files" read "$T/files"
cp "$T/out" "$T/read.txt"
same read.txt "$T/read.txt"
expect 0 "$MC_BIN/mc-topo" show --sysfs "$T/machine" --output json
jq -S 'del(.source)' "$T/out" >"$T/machine.txt"
same machine.txt "$T/machine.txt"

# The programs agree.
for kind in bucket file offset; do
  expect 0 "$MC_BIN/mc-store" verify --ssd "$T/files/ssd-$kind" --ssd-size 256KiB --ssd-backend "$kind"
done
expect 0 "$MC_BIN/mc-replay" analyze "$T/files/trace.jsonl" --strict
