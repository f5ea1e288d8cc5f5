#!/usr/bin/env bash
# mc-xfer publish, pull, list, unpublish: sets survive their origin, pulls go on where they stopped,
# and what is wrong is refused.
source "$(dirname "$0")/../common.inc"
xfer=$MC_BIN/mc-xfer
source "$(dirname "$0")/../daemons.inc"
start() { launch "$1" "$xfer" "${@:2}"; }  # NAME VERB...

mkdir -p "$T/w/sub"
head -c 3000001 /dev/urandom >"$T/w/a.bin"
head -c 700000 /dev/urandom >"$T/w/sub/b.bin"
: >"$T/w/empty"
start origin publish set-1 "$T/w" --shard 256KiB
grep -q '3 files *15 of 15 shards' "$T/origin.log" || die "publish: $(cat "$T/origin.log")"

expect 0 "$xfer" pull set-1 --from "$(address origin)" --to "$T/first" --output json
jq -e '.bytes == 3700001 and .kept == 0 and .shards == 15' "$T/out" >/dev/null || die "$(cat "$T/out")"
diff -r "$T/w" "$T/first" || die "other bytes arrived"

# What is there and whole is kept; what was changed is fetched again.
printf 'x' | dd of="$T/first/a.bin" bs=1 seek=1000000 conv=notrunc status=none
expect 0 "$xfer" pull set-1 --from "$(address origin)" --to "$T/first" --output json --transports tcp
jq -e '.kept == 3700001 - 262144' "$T/out" >/dev/null || die "resume: $(cat "$T/out")"
diff -r "$T/w" "$T/first" || die "the changed shard was not repaired"

# F30: what was interrupted does not look whole. A shard of the origin's is another now.
printf 'x' | dd of="$T/w/a.bin" bs=1 seek=2000000 conv=notrunc status=none
! "$xfer" pull set-1 --from "$(address origin)" --to "$T/part" 2>"$T/err" || die "a wrong shard was taken"
[ ! -e "$T/part/a.bin" ] || die "a.bin looks whole"
[ -s "$T/part/.a.bin.mc-part" ] || die "nothing of a.bin is there: $(ls -lAR "$T/part")"
cmp "$T/w/sub/b.bin" "$T/part/sub/b.bin" || die "a whole file has not its name"
dd if="$T/first/a.bin" of="$T/w/a.bin" bs=1 skip=2000000 seek=2000000 count=1 conv=notrunc status=none
expect 0 "$xfer" pull set-1 --from "$(address origin)" --to "$T/part" --output json
jq -e '.kept == 3700001 - 262144' "$T/out" >/dev/null || die "resume: $(cat "$T/out")"
diff -r "$T/w" "$T/part" || die "other bytes arrived, or a part is left"

start second pull set-1 --from "$(address origin)" --to "$T/second" --serve
start third pull set-1 --from "$(address origin)" --to "$T/third" --serve
kill_9 origin
# The origin is gone; one of the others is enough to find the rest.
expect 0 "$xfer" pull set-1 --from "$(address origin),$(address second)" --to "$T/fourth"
diff -r "$T/w" "$T/fourth" || die "other bytes arrived from the pullers"
expect 0 "$xfer" list --from "$(address third)" --output json
jq -e '.name == "set-1" and .have == 15' "$T/out" >/dev/null || die "list: $(cat "$T/out")"
# Of several sources, each row says whose it is; one that does not answer is named, the rest listed.
expect 3 "$xfer" list --from "127.0.0.1:1,$(address third)" --timeout 500ms --output json
jq -e --arg source "$(address third)" '.source == $source and .name == "set-1"' "$T/out" >/dev/null ||
  die "list: $(cat "$T/out")"
grep -q '127.0.0.1:1' "$T/err" || die "which source is silent is not said: $(cat "$T/err")"

expect 1 "$xfer" pull set-2 --from "$(address second)" --to "$T/none"
grep -q "no set 'set-2' here" "$T/err" || die "unknown set: unclear error"
expect 3 "$xfer" pull set-1 --from 127.0.0.1:1 --to "$T/none"
expect 2 "$xfer" pull set-1 --from "$(address second)"
grep -q 'which folder' "$T/err" || die "no folder: unclear error"
expect 2 "$xfer" publish 'a b' "$T/w"
expect 1 "$xfer" publish c "$T/absent"
grep -q "$T/absent" "$T/err" || die "absent file: unclear error"
mkdir "$T/links"
ln -s /dev/null "$T/links/a.bin"
expect 1 "$xfer" pull set-1 --from "$(address second)" --to "$T/links"

expect 0 "$xfer" unpublish set-1 --from "$(address second)"
grep -q 'dropped by 2 sources' "$T/out" || die "unpublish: $(cat "$T/out")"
expect 1 "$xfer" pull set-1 --from "$(address third)" --to "$T/none"
stop third
stop second
