#!/usr/bin/env bash
# mc-xfer: serve, copy there and back, bench with contents checked, and clear errors.
source "$(dirname "$0")/../common.inc"
xfer=$MC_BIN/mc-xfer
source "$(dirname "$0")/../daemons.inc"
serve() { launch "$1" "$xfer" serve --listen 127.0.0.1:0 --http 127.0.0.1:0 "${@:2}"; }
serve memory --size 64MiB
peer=$(address memory)

head -c 5000001 /dev/urandom >"$T/file"
for transport in shm tcp; do
  expect 0 "$xfer" copy "$T/file" "$peer/4096" --transports $transport
  grep -q "5000001 bytes .* over $transport" "$T/out" || die "no word of what was copied over $transport"
  expect 0 "$xfer" copy "$peer/4096" "$T/back" --bytes 5000001 --transports $transport
  cmp "$T/file" "$T/back" || die "$transport brought other bytes back"
  expect 0 "$xfer" bench "$peer" --transports $transport --block 64KiB --batch 4 --threads 2 \
    --duration 50ms --output json
  jq -es 'length == 2 and all(.checked and .gb_per_s > 0)' "$T/out" >/dev/null || die "bench rows: $(cat "$T/out")"
done
expect 0 "$xfer" bench "$peer" --mix high:read:4KiB:2:1s,low:write:1MiB:1 --duration 50ms --output json
jq -es '.[0].class == "high" and .[0].slo_attainment > 0 and .[0].fairness > 0 and .[1].class == "low"
  and all(.checked)' "$T/out" >/dev/null || die "mix: $(cat "$T/out")"
expect 0 "$xfer" bench "$peer" --op read --block 4KiB --duration 50ms --output csv
[ "$(wc -l <"$T/out") $(head -1 "$T/out" | cut -d, -f1-3)" = "2 class,op,transport" ] || die "csv: $(cat "$T/out")"
for op in write read; do
  expect 0 "$xfer" kv "$peer" --op $op --layers 3 --blocks 5 --rounds 1 --threads 1,2 --output json
  jq -es 'length == 2 and all(.checked and .ratio > 0 and .layer_p99_us > 0)' "$T/out" >/dev/null ||
    die "kv $op: $(cat "$T/out")"
done
expect 0 "$xfer" kv "$peer" --layers 3 --blocks 5 --rounds 1 --each
expect 2 "$xfer" kv "$peer" --layers 6100
grep -q '6100 layers x 32 blocks need .* the peer offers 64.0 MiB' "$T/err" || die "too large: unclear error"
expect 0 "$xfer" paths "$peer" --output json
jq -es '(map(.transport) == ["shm", "file", "tcp"]) and map(.chosen) == [true, false, false]
  and map(.usable) == [true, false, true]' "$T/out" >/dev/null ||
  die "paths: $(cat "$T/out")"
expect 0 "$xfer" paths "$peer" --transports tcp
grep -q '^tcp *chosen' "$T/out" || die "paths: $(cat "$T/out")"
# What was not measured has no number.
unused=(paths "$peer" --transports tcp --warm-up 0)
expect 0 "$xfer" "${unused[@]}"
grep -Eq ' healthy +- +- +0 +0 +0 +-$' "$T/out" || die "a rail that was not used: $(cat "$T/out")"
expect 0 "$xfer" "${unused[@]}" --output json
jq -es 'map(select(.chosen).rails[]) | length > 0 and all(.gb_per_s == null and .latency_us == null
  and .predicted_us == null and .slices == 0)' "$T/out" >/dev/null ||
  die "a rail that was not used: $(cat "$T/out")"
expect 0 "$xfer" probe "$peer" --pings 20 --bulk 1MiB --output json
jq -es 'map(select(.nic == "" and .error == null)) | length == 2 and all(.p50_us > 0 and .gb_per_s > 0)' "$T/out" >/dev/null ||
  die "probe: $(cat "$T/out")"

# Memory of a device at one end, at the other, at both: over whichever way, the same bytes.
serve gpu --size 64MiB --device stand-in
gpu=$(address gpu)
for way in "$peer --device stand-in" "$gpu" "$gpu --device stand-in"; do
  # shellcheck disable=SC2086
  expect 0 "$xfer" bench $way --block 64KiB,1MiB --batch 1,4 --duration 50ms --output json
  jq -es 'length == 8 and all(.checked and .gb_per_s > 0)' "$T/out" >/dev/null || die "bench $way: $(cat "$T/out")"
  for op in write read; do
    # shellcheck disable=SC2086
    expect 0 "$xfer" kv $way --op $op --layers 3 --blocks 5 --rounds 2 --output json
    jq -es 'length == 1 and all(.checked)' "$T/out" >/dev/null || die "kv $op $way: $(cat "$T/out")"
  done
done
expect 0 "$xfer" copy "$T/file" "$gpu/4096" # by the owner: this process has no device
expect 0 "$xfer" copy "$gpu/4096" "$T/back" --bytes 5000001
cmp "$T/file" "$T/back" || die "a device brought other bytes back"
expect 2 "$xfer" bench "$peer" --device gpu
grep -q "'gpu' is no device" "$T/err" || die "no such device: unclear error"
expect 2 "$xfer" bench "$peer" --mix urgent:read:4KiB
grep -q 'the class is high, medium or low' "$T/err" || die "bad mix: unclear error"
expect 2 "$xfer" copy "$T/file" "$peer/0" --output csv
"$xfer" copy - "$peer/0" <"$T/file" >/dev/null
"$xfer" copy "$peer/0" - --bytes 5000001 2>/dev/null | cmp - "$T/file" || die "stdin and stdout differ"

# A file that was there stays as it is until all of the new one is here, and keeps its mode.
echo kept >"$T/old"
chmod 640 "$T/old"
for bytes in 65MiB 17000000; do
  offset=0
  [ $bytes = 65MiB ] || offset=64MiB
  expect 2 "$xfer" copy "$peer/$offset" "$T/old" --bytes $bytes
  grep -q 'of them from there on: ask for less' "$T/err" || die "beyond the segment: $(cat "$T/err")"
  [ "$(cat "$T/old")" = kept ] || die "a failed copy changed the file that was there"
done
expect 0 "$xfer" copy "$peer/0" "$T/old" --bytes 5000001
cmp "$T/file" "$T/old" || die "the file that was there has other bytes"
[ "$(stat -c %a "$T/old")" = 640 ] || die "the file that was there has another mode"
expect 2 "$xfer" copy "$peer/0" "$T/never" --bytes 65MiB
[ ! -e "$T/never" ] && [ -z "$(find "$T" -name '*.tmp')" ] || die "a failed copy left a file: $(ls "$T")"

# What does not fit is refused before a byte of it moves, in the numbers of who asked.
truncate -s 65MiB "$T/big"
for from in "$T/big" -; do
  status=0
  "$xfer" copy "$from" "$peer/0" <"$T/big" 2>"$T/err" || status=$?
  [ $status = 2 ] || die "$from is too large: exit $status: $(cat "$T/err")"
  grep -q ', 68157440 bytes, at offset 0: .* offers 67108864 bytes of memory, .*(serve --size)' "$T/err" ||
    die "$from is too large: $(cat "$T/err")"
  expect 0 "$xfer" copy "$peer/0" "$T/back" --bytes 5000001
  cmp "$T/file" "$T/back" || die "a part of $from was written all the same"
done
tail -c 3MiB "$T/big" | "$xfer" copy - "$peer/62MiB" 2>"$T/err" && die "a pipe wrote beyond the memory"
grep -q 'stdin, 3145728 bytes or more (the first 0 are there now), at offset 65011712' "$T/err" || die "a pipe: $(cat "$T/err")"
expect 2 "$xfer" paths "$peer" --offset 64MiB --bytes 64KiB
grep -q -- '--bytes 65536 at --offset 67108864: .* offers 67108864 bytes' "$T/err" || die "paths: $(cat "$T/err")"
expect 2 "$xfer" copy "$peer/0" "$T"
grep -q "'$T' is a folder: name a file" "$T/err" || die "into a folder: $(cat "$T/err")"
expect 2 "$xfer" copy "$T" "$peer/0"
grep -q "'$T' is a folder: memory takes a file" "$T/err" || die "from a folder: $(cat "$T/err")"

# A copy that waits longer than a moment says for whom.
for to in 127.0.0.1:1/0 127.0.0.1:1/folder/; do
  expect 3 "$xfer" copy "$T/file" $to --timeout 3s --progress
  grep -q 'waiting for 127.0.0.1:1 to answer, for 3s at most (--timeout)' "$T/err" || die "$to: $(cat "$T/err")"
  expect 3 "$xfer" copy "$T/file" $to --timeout 1100ms
  ! grep -q 'waiting for' "$T/err" || die "a note where no progress is shown: $(cat "$T/err")"
done

# Threads are bounded, and those that cannot begin are no abort.
expect 2 "$xfer" bench "$peer" --threads 1025 --block 4KiB --duration 50ms
grep -q -- '--threads 1025: want 1 to 1024' "$T/err" || die "too many threads: $(cat "$T/err")"
if [ -z "${MC_SANITIZE:-}" ]; then
  for verb in "bench --op read --block 4KiB --duration 50ms" "kv --layers 3 --blocks 5 --rounds 1"; do
    # shellcheck disable=SC2086
    (ulimit -s 65536 -v 8000000 && expect 1 "$xfer" ${verb%% *} "$peer" ${verb#* } --threads 1024) || die "$verb: $(cat "$T/err")"
    grep -q 'of 1024 does not begin: .*limits on processes' "$T/err" || die "$verb: $(cat "$T/err")"
  done
fi

# What would be ignored, or means nothing, is refused.
for flag in "--mix low:read:4KiB --block 64KiB" "--preset fig4 --block 64KiB" "--preset fig4 --no-check" \
  "--preset fig4 --mix low:read:4KiB"; do
  # shellcheck disable=SC2086
  expect 2 "$xfer" bench "$peer" $flag --duration 10ms
  grep -q 'has no place beside --' "$T/err" || die "$flag: $(cat "$T/err")"
done
expect 2 "$xfer" bench "$peer" --slice 1KiB --block 4KiB --duration 10ms
grep -q 'slice 1KiB: want 64KiB or more' "$T/err" || die "a short slice: $(cat "$T/err")"
expect 2 "$xfer" serve --slice 0 --listen 127.0.0.1:0 --http 127.0.0.1:0
echo '{"transport": "warp", "drop": true}' >"$T/rules"
expect 2 "$xfer" bench "$peer" --fault "$T/rules" --block 4KiB --duration 10ms
grep -q "rules line 1: .*'warp' is not one of ,shm" "$T/err" || die "an unknown transport: $(cat "$T/err")"
expect 2 "$xfer" kv "$peer" --layers 3 --blocks 5 --rounds 0
expect 2 "$xfer" probe "$peer" --pings 0

# A name without an address reads otherwise than a peer that does not answer.
for command in "copy $T/file no.such..name.invalid:7600/0" "copy no.such..name.invalid:7600/folder/ $T/x" \
  "paths no.such..name.invalid:7600"; do
  # shellcheck disable=SC2086
  expect 3 "$xfer" $command
  grep -Eq "the name '.*' has no address|its name had no address" "$T/err" || die "a name without an address: $(cat "$T/err")"
done

expect 2 "$xfer" copy "$T/file" "$T/other"
grep -q 'must be a peer' "$T/err" || die "two files: unclear error"
expect 2 "$xfer" copy "$T/file" "$peer/99999999999"
grep -q '5000001 bytes, at offset 99999999999: .* offers 67108864 bytes' "$T/err" || die "out of range: $(cat "$T/err")"
expect 3 "$xfer" bench 127.0.0.1:1 --duration 50ms
grep -q 'is it running there' "$T/err" || die "no peer: unclear error"
expect 1 "$xfer" copy "$T/no-such-file" "$peer/0"
expect 2 "$xfer" bench "$peer" --blokc 4KiB
grep -q 'did you mean --block' "$T/err" || die "no suggestion for a mistyped flag"
expect 2 "$xfer" bench "$peer" --transports warp
expect 3 "$xfer" serve --listen "$peer" --http 127.0.0.1:0
grep -q 'in use' "$T/err" || die "port in use: unclear error"
expect 2 "$xfer" serve --listen 0.0.0.0:0 --http 127.0.0.1:0
grep -q 'cluster-key' "$T/err" || die "beyond loopback without a key: unclear error"
stop memory

# A file in place of memory: bytes go into it and out of it, by any process.
serve file --size 0 --file "$T/segment" --file-size 8MiB --writable
peer=$(address file)
for transports in file,tcp tcp; do
  head -c 5000001 /dev/urandom >"$T/file"
  expect 0 "$xfer" copy "$T/file" "$peer/4096" --transports $transports
  expect 0 "$xfer" copy "$peer/4096" "$T/back" --bytes 5000001 --transports $transports
  grep -q "over ${transports%%,*}" "$T/out" || die "file read another way: $(cat "$T/out")"
  cmp "$T/file" "$T/back" || die "the file segment brought other bytes back over $transports"
  cmp -n 5000001 -i 4096:0 "$T/segment" "$T/file" || die "the file does not hold what was sent"
done
curl -s "http://$(jq -r .http "$T/file.json")/health" |
  jq -e '.bytes == 8388608 and .files[0].offset == 0 and .files[0].bytes == .bytes' >/dev/null ||
  die "health does not tell of the file"
expect 0 "$xfer" paths "$peer" --output json
jq -es 'map(select(.chosen)) | length == 1 and .[0].transport == "file"' "$T/out" >/dev/null ||
  die "paths of a file: $(cat "$T/out")"
stop file
expect 2 "$xfer" serve --size 0 --listen 127.0.0.1:0 --http 127.0.0.1:0
grep -q 'nothing to offer' "$T/err" || die "nothing to offer: unclear error"
