#!/usr/bin/env bash
# kill -9 of the decode worker in the middle of a stream: another one goes on, and the text is the one
# that an undisturbed request gets.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"
cluster_up --prefill 1 --decode 2 --store 0 --with 'conductor:--worker-ttl 2s'

ask() { # MAX_TOKENS
  curl -sS -N -m 120 -D "$T/head" --json '{"model":"tiny","prompt":"a long story","temperature":1,"seed":5,
    "frequency_penalty":0.5,"ignore_eos":true,"stream":true,"max_tokens":'"$1"'}' "$URL/v1/completions"
}
text() { sed -n 's/^data: {/{/p' "$1" | jq -j '.choices[0].text'; }
ask 300 >"$T/whole"
grep -q '^data: \[DONE\]' "$T/whole" || die "the undisturbed stream did not end: $(tail -3 "$T/whole")"

ask 300 >"$T/cut" &
stream=$!
begun() { [ "$(grep -c '^data: {' "$T/cut")" -ge 20 ]; }
until_true 30 "the stream does not begin" begun
victim=$(tr -d '\r' <"$T/head" | awk 'tolower($1) == "x-mc-decode:" { print $2 }')
loopback kill "$victim"
! grep -q DONE "$T/cut" || die "the stream was over before $victim was killed"
wait $stream || die "the stream was cut: $(tail -3 "$T/cut")"
grep -q '^data: \[DONE\]' "$T/cut" || die "the stream did not end well: $(tail -3 "$T/cut")"
cmp <(text "$T/whole") <(text "$T/cut") || die "another text after $victim was killed"
[ "$(curl -fsS "$URL/metrics" | awk '/^mc_conductor_retries_total/ { print $2 }')" = 1 ] || die "no retry was counted"
loopback restart "$victim"
rest_within 30 "$victim killed"
