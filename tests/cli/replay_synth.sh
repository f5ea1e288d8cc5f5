#!/usr/bin/env bash
# mc-replay synth: the same seed makes the same trace, and bad profiles are named.
. "$(dirname "$0")/../common.inc"
replay=$MC_BIN/mc-replay
[ -x "$replay" ] || skip "mc-replay is not built in $MC_BIN"
profiles=$MC_SOURCE/configs/profiles

for file in "$profiles"/*.json; do
  expect 0 "$replay" synth --profile "$file" --requests 50 --seed 3 --out "$T/a.jsonl"
  grep -q "^wrote $T/a.jsonl: 50 requests" "$T/out" || die "$(cat "$T/out")"
  expect 0 "$replay" synth --profile "$file" --requests 50 --seed 3
  cmp "$T/out" "$T/a.jsonl" || die "stdout and --out differ for $file"
  expect 0 "$replay" synth --profile "$file" --requests 50 --seed 4
  cmp -s "$T/out" "$T/a.jsonl" && die "another seed made the same trace of $file"
  expect 0 "$replay" analyze --strict "$T/a.jsonl"
done

# A profile that comes with mc is found by name from any folder.
cd "$T" || die "no $T"
expect 0 "$replay" synth --profile "$profiles/sample.json" --seed 1 --out "$T/by-path.jsonl"
if [ -e "$MC_BIN/../../configs/profiles" ]; then
  expect 0 "$replay" synth --profile sample --seed 1 --out "$T/by-name.jsonl" --output json
  python3 -m json.tool "$T/out" >/dev/null || die "synth --output json is not JSON"
  cmp "$T/by-name.jsonl" "$T/by-path.jsonl" || die "the name is another profile than the file"
fi

expect 1 "$replay" synth --profile absent
grep -q "no profile 'absent' in configs/profiles" "$T/err" || die "$(cat "$T/err")"
expect 1 "$replay" synth --profile "$T/absent.json"
sed 's/"span-s"/"spam-s"/' "$profiles/sample.json" >"$T/bad.json"
expect 2 "$replay" synth --profile "$T/bad.json"
grep -q "$T/bad.json: no \"span-s\"" "$T/err" || die "$(cat "$T/err")"
sed 's/"generator": "conversation"/"generator": "novel"/' "$profiles/sample.json" >"$T/bad.json"
expect 2 "$replay" synth --profile "$T/bad.json"
grep -q "unknown generator 'novel'; there are: conversation" "$T/err" || die "$(cat "$T/err")"
expect 1 "$replay" synth --profile "$profiles/sample.json" --out "$T/no/such/folder.jsonl"
expect 2 "$replay" synth --profile "$profiles/sample.json" --seed -1
expect 2 "$replay" synth --profile "$profiles/sample.json" --requests 99999999999

# A log may come through a pipe.
printf 'TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,374,44\n2023-11-16 18:17:04.03,396,109\n' >"$T/azure.csv"
expect 0 "$replay" synth --from "$T/azure.csv" --prefix none --out "$T/azure.jsonl"
"$replay" synth --from /dev/stdin --prefix none --out "$T/piped.jsonl" < <(cat "$T/azure.csv") >"$T/out" 2>&1 ||
  die "a log through a pipe: $(cat "$T/out")"
cmp "$T/azure.jsonl" "$T/piped.jsonl" || die "a log through a pipe is another trace"

# Identical requests; and another trace, stretched.
expect 0 "$replay" synth fixed --input-tokens 2000 --output-tokens 100 --out "$T/fixed.jsonl"
[ "$(jq -sc '[length, (map(.input_length) | unique), (map(.output_length) | unique), .[199].timestamp]' \
  "$T/fixed.jsonl")" = '[200,[2000],[100],99500]' ] || die "$(head -2 "$T/fixed.jsonl")"
expect 0 "$replay" analyze "$T/fixed.jsonl" --strict
expect 0 "$replay" synth --trace "$T/fixed.jsonl" --rate-scale 2 --prompt-scale 3 --out "$T/long.jsonl"
[ "$(jq -sc '[(map(.input_length) | unique), .[199].timestamp]' "$T/long.jsonl")" = '[[6000],49750]' ] ||
  die "$(head -2 "$T/long.jsonl")"
expect 0 "$replay" analyze "$T/long.jsonl" --strict
expect 2 "$replay" synth --trace "$T/fixed.jsonl" --rate-scale 0
expect 2 "$replay" synth --trace "$T/fixed.jsonl" --prefix-scale inf
expect 2 "$replay" synth fixed --trace "$T/fixed.jsonl"
expect 2 "$replay" synth novel
expect 2 "$replay" synth fixed --qps -1

# A profile read off a trace makes traces like it.
"$replay" synth --profile "$profiles/sample.json" --requests 400 --seed 2 --out "$T/told.jsonl" >"$T/out"
expect 0 "$replay" synth fit --trace "$T/told.jsonl" --out "$T/fitted.json"
grep -q 'traces from this profile, compared with .*: new sessions' "$T/err" || die "$(cat "$T/err")"
expect 0 "$replay" synth fit --trace "$T/told.jsonl"
cmp "$T/out" "$T/fitted.json" || die "stdout and --out differ for a fitted profile"
expect 0 "$replay" synth --profile "$T/fitted.json" --seed 9 --out "$T/again.jsonl"
grep -q '400 requests' "$T/out" || die "$(cat "$T/out")"
expect 0 "$replay" analyze "$T/again.jsonl" --strict
expect 2 "$replay" synth fit
grep -q 'fit reads a trace and nothing else' "$T/err" || die "$(cat "$T/err")"
expect 2 "$replay" synth fit --trace "$T/fixed.jsonl" --requests 10

# A log without block hashes needs a word on what its prompts share.
cat >"$T/log.csv" <<'L'
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.97,1100,44
2023-11-16 18:17:04.10,600,10
2023-11-16 18:17:bad,600,10
L
expect 2 "$replay" synth --from "$T/log.csv"
grep -q 'give --prefix none, shared:TOKENS' "$T/err" || die "$(cat "$T/err")"
expect 0 "$replay" synth --from "$T/log.csv" --prefix shared:600 --out "$T/log.jsonl"
grep -q 'skipped 1 rows; the first is line 4: TIMESTAMP' "$T/err" || die "$(cat "$T/err")"
expect 0 "$replay" analyze "$T/log.jsonl" --strict
expect 2 "$replay" synth --from "$T/log.csv" --prefix sometimes
expect 2 "$replay" synth --prefix none
expect 1 "$replay" synth --from "$T/absent.csv" --prefix none
