#!/usr/bin/env bash
# mc-xfer copy of files and folders: there and back, gone on with after kill -9 on either side,
# repaired where it is corrupt, and refused where it would leave the folder.
source "$(dirname "$0")/../common.inc"
xfer=$MC_BIN/mc-xfer
source "$(dirname "$0")/../daemons.inc"
# serve NAME ARGUMENT...; $peer is its address.
serve() {
  local name=$1
  shift
  launch "$name" "$xfer" serve --listen 127.0.0.1:0 --http 127.0.0.1:0 --size 64MiB "$@"
  peer=$(address "$name")
}
# Waits until the half-copied file $1 holds a few pieces, or more than $3 disk blocks, or process $2
# ended.
wait_part() {
  local deadline=$((SECONDS + 30))
  until [ -e "$1" ] && [ "$(stat -c %b "$1")" -gt "${3:-30000}" ]; do
    kill -0 "$2" 2>/dev/null || return 0
    [ $SECONDS -lt $deadline ] || die "no part $1"
  done
}

mkdir -p "$T/src/sub/deep" "$T/in" "$T/src/empty-folder"
head -c 9000001 /dev/urandom >"$T/src/big.bin"
head -c 100 /dev/urandom >"$T/src/sub/small"
echo '#!/bin/sh' >"$T/src/sub/deep/run me"
: >"$T/src/empty"
chmod 750 "$T/src/sub/deep/run me"
chmod 600 "$T/src/sub/small"
chmod 555 "$T/src/sub/deep"
ln -s /etc/passwd "$T/src/link"
ln -s /etc "$T/src/sub/etc"
modes() { (cd "$1" && find . -mindepth 1 ! -type l -printf '%P %m\n' | sort); }
alike() {
  diff -r <(cd "$1" && find . -type f | sort | xargs -d '\n' sha256sum) \
    <(cd "$2" && find . -type f | sort | xargs -d '\n' sha256sum) || die "$3: other contents"
  diff <(modes "$1") <(modes "$2") || die "$3: other modes"
}

serve out --root "$T/src"
expect 0 "$xfer" copy "$peer/big.bin" "$T/one" --output json --progress
cmp "$T/src/big.bin" "$T/one" || die "other bytes arrived"
jq -e '.files == 1 and .bytes == 9000001 and .kept == 0 and .transport == "shm"' "$T/out" >/dev/null || die "$(cat "$T/out")"
grep -q '8.6 MiB of 8.6 MiB (100 %)' "$T/err" || die "no progress: $(cat "$T/err")"
expect 0 "$xfer" copy "$peer/big.bin" "$T/new/"
cmp "$T/src/big.bin" "$T/new/big.bin" || die "into a folder"
for transport in shm tcp; do
  expect 0 "$xfer" copy "$peer/" "$T/$transport" --transports $transport --output json
  jq -e '.files == 4 and .folders == 4 and .skipped == 2 and .bytes == 9000111' "$T/out" >/dev/null || die "$(cat "$T/out")"
  alike "$T/src" "$T/$transport" "a folder over $transport"
  [ ! -e "$T/$transport/link" ] || die "a link was copied"
done
# The same again keeps everything; what changed is brought anew.
printf x | dd of="$T/tcp/big.bin" bs=1 seek=5000000 conv=notrunc status=none
expect 0 "$xfer" copy "$peer/" "$T/tcp" --output json
jq -e '.bytes == 9000111 and .kept == 110' "$T/out" >/dev/null || die "again: $(cat "$T/out")"
alike "$T/src" "$T/tcp" "the changed file"

# A partial copy: its good pieces are kept, its corrupted one is not.
head -c 8388608 "$T/src/big.bin" >"$T/.part.mc-part"
printf x | dd of="$T/.part.mc-part" bs=1 seek=5000000 conv=notrunc status=none
expect 0 "$xfer" copy "$peer/big.bin" "$T/part" --output json
jq -e '.kept == 4194304' "$T/out" >/dev/null || die "partial: $(cat "$T/out")"
cmp "$T/src/big.bin" "$T/part" || die "a corrupted part was kept"
[ ! -e "$T/.part.mc-part" ] || die "the part is still there"

# What leaves the folder, and writing.
for path in ../one sub/../../one /etc/passwd; do
  expect 1 "$xfer" copy "$peer/$path" "$T/stolen"
  grep -q 'leaves the folder' "$T/err" || die "$path: $(cat "$T/err")"
done
for path in link sub/etc/passwd; do
  expect 1 "$xfer" copy "$peer/$path" "$T/stolen"
  grep -q 'is a symbolic link, which a copy does not follow' "$T/err" || die "$path: $(cat "$T/err")"
done
[ ! -e "$T/stolen" ] || die "something was stolen"
expect 1 "$xfer" copy "$T/one" "$peer/new"
grep -q 'read-only: serve it with --root and --writable' "$T/err" || die "read-only: $(cat "$T/err")"
[ ! -e "$T/src/new" ] || die "a read-only folder was written to"
expect 1 "$xfer" copy "$peer/absent" "$T/stolen"
expect 2 "$xfer" copy "$peer/big.bin" -
expect 2 "$xfer" copy "$T/one" "$T/two"
stop out

serve in --root "$T/in" --writable
expect 0 "$xfer" copy "$T/src" "$peer/a/b" --output json
jq -e '.files == 4 and .skipped == 2 and .kept == 0' "$T/out" >/dev/null || die "$(cat "$T/out")"
alike "$T/src" "$T/in/a/b" "sent"
expect 0 "$xfer" copy "$T/src/sub/small" "$peer/a/"
cmp "$T/src/sub/small" "$T/in/a/small" || die "sent into a folder"
ln -s "$T/new" "$T/in/way-out"
for path in ../x way-out/x; do
  expect 1 "$xfer" copy "$T/one" "$peer/$path"
done
[ ! -e "$T/x" ] && [ ! -e "$T/new/x" ] || die "a link was followed when writing"
# A file where a folder is meant, and a folder where a file is: by name, and nothing to go on with.
for copy in "one a/small/one" "one a/small/b/one" "src a/small"; do
  expect 2 "$xfer" copy "$T/${copy% *}" "$peer/${copy#* }"
  grep -q "'a/small' is a file" "$T/err" || die "$copy: $(cat "$T/err")"
  ! grep -q 'goes on from there' "$T/err" || die "$copy can be gone on with: $(cat "$T/err")"
done
mkdir -p "$T/in/a/one"
expect 2 "$xfer" copy "$T/one" "$peer/a"
grep -q "'a/one' is a folder at the destination, and a file at the source" "$T/err" || die "$(cat "$T/err")"
rmdir "$T/in/a/one"

# A number is an offset of memory, and here that only stages files: nothing is written or read by it.
for copy in "$T/one $peer/5" "$peer/2024 $T/got" "$peer/99999999999 $T/got"; do
  # shellcheck disable=SC2086
  expect 2 "$xfer" copy $copy
  grep -Eq "a file of that name is $peer/\./[0-9]+" "$T/err" || die "$copy: $(cat "$T/err")"
done
expect 0 "$xfer" copy "$T/one" "$peer/./5"
expect 0 "$xfer" copy "$peer/./5" "$T/five"
cmp "$T/one" "$T/five" || die "a file whose name is a number has other bytes"
rm "$T/in/5"

# Killed in the middle of sending, and then the peer killed: the third goes on where they stopped.
echo '{"bandwidth": "20MiB"}' >"$T/slow"
head -c 100000000 /dev/zero | tr '\0' 'k' >"$T/huge"
sha=$(sha256sum <"$T/huge")
"$xfer" copy "$T/huge" "$peer/huge" --parallel 1 --fault "$T/slow" >"$T/killed.out" 2>&1 &
PIDS[copy]=$!
wait_part "$T/in/.huge.mc-part" $!
kill -9 $! 2>/dev/null || die "it was over before it was killed"
wait $! || true
[ ! -e "$T/in/huge" ] || die "a half-copied file has its name"
had=$(stat -c %b "$T/in/.huge.mc-part")
"$xfer" copy "$T/huge" "$peer/huge" --parallel 1 --timeout 2s --fault "$T/slow" >"$T/dead.out" 2>"$T/dead.err" &
copy=$!
wait_part "$T/in/.huge.mc-part" $copy "$had" # before that its port might be another's already
kill -9 "${PIDS[in]}"
status=0
wait $copy || status=$?
[ $status = 3 ] || die "the peer died: exit $status: $(cat "$T/dead.err")"
serve in --root "$T/in" --writable
expect 0 "$xfer" copy "$T/huge" "$peer/huge" --output json
jq -e '.kept > 0' "$T/out" >/dev/null || die "nothing was kept: $(cat "$T/out")"
[ "$(sha256sum <"$T/in/huge")" = "$sha" ] || die "other bytes after going on"

# And receiving.
"$xfer" copy "$peer/huge" "$T/got" --parallel 1 --fault "$T/slow" >"$T/killed.out" 2>&1 &
PIDS[copy]=$!
wait_part "$T/.got.mc-part" $!
kill -9 $! 2>/dev/null || die "it was over before it was killed"
wait $! || true
expect 0 "$xfer" copy "$peer/huge" "$T/got" --output json
jq -e '.kept > 0' "$T/out" >/dev/null || die "nothing was kept: $(cat "$T/out")"
cmp "$T/huge" "$T/got" || die "other bytes after going on"

# From peer to peer, through us.
serve second --root "$T/new" --writable
expect 0 "$xfer" copy "$(jq -r .control "$T/in.json")/a" "$peer/c"
alike "$T/in/a" "$T/new/c" "from peer to peer"

# The memory of a --file lies behind the one that stages, and is copied.
truncate -s 1MiB "$T/disk"
serve both --root "$T/new" --file "$T/disk" --writable
offset=$(curl -s "http://$(jq -r .http "$T/both.json")/health" | jq .files[0].offset)
expect 0 "$xfer" copy "$T/src/sub/small" "$peer/$offset"
cmp -n 100 "$T/src/sub/small" "$T/disk" || die "the memory of a --file beside --root"

expect 3 "$xfer" copy 127.0.0.1:1/file "$T/stolen" --timeout 1s
expect 2 "$xfer" serve --writable
serve memory
expect 1 "$xfer" copy "$peer/file" "$T/stolen"
grep -q 'offers memory and no folder' "$T/err" || die "no folder: $(cat "$T/err")"
