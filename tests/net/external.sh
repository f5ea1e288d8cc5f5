#!/usr/bin/env bash
# External engines as processes: a whole one and a pair are registered by POST, requests go where their
# prompts are cached, a pair's halves hand over, registrations outlive a conductor that is killed, and an
# engine that is killed is left out.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/../daemons.inc"
engine() { # NAME ROLE
  "$MC_BIN/mock-engine" "$1" org/tiny 16 "$2" "$T/$1.json" >"$T/$1.log" 2>&1 &
  # shellcheck disable=SC2034  # daemons.inc ends it
  PIDS["$1"]=$!
  until_true 30 "engine $1 does not start" test -s "$T/$1.json"
}
conductor() {
  launch conductor "$MC_BIN/mc-conductor" --listen 127.0.0.1:0 --http 127.0.0.1:0 --model tiny \
    --foreign-state "$T/registered.json" --admin-socket "$T/admin.sock"
  http=$(jq -r .http "$T/conductor.json")
}
register() {
  curl -fsS -m 5 --unix-socket "$T/admin.sock" http://mc/register --json "@$T/$1.json" -o "$T/out" ||
    die "$1 is not registered"
}
ready() { curl -fsS -m 5 "http://$http/ready" -o "$T/out"; }
ask() { # JSON MEMBERS -> $T/body and $T/headers
  curl -fsS -m 10 -D "$T/headers" -o "$T/body" "http://$http/v1/completions" \
    --json "{\"model\":\"tiny\",$1}" || die "no answer to $1: $(cat "$T/body" 2>/dev/null)"
}
header() { tr -d '\r' <"$T/headers" | sed -n "s/^$1: //p"; }
indexed() { # NAME BLOCKS
  curl -fsS -m 5 "http://$http/cluster" |
    jq -e ".nodes[] | select(.name == \"$1\") | .index_blocks == $2"
}

conductor
engine p prefill
register p
engine d decode
register d
until_true 30 "a pair does not make the conductor ready" ready
prompt=$(jq -nc '[range(1; 66)]')
ask "\"prompt\":$prompt,\"max_tokens\":5"
[ "$(header x-mc-prefill) $(header x-mc-decode) $(header x-mc-cached-tokens)" = "p d 0" ] ||
  die "a cold prompt on a pair: $(cat "$T/headers")"
until_true 30 "what the pair cached is not known" indexed p 4
ask "\"prompt\":$prompt,\"stream\":true"
[ "$(header x-mc-cached-tokens)" = 64 ] || die "not reused: $(cat "$T/headers")"
tail -n 2 "$T/body" | grep -q '^data: \[DONE\]' || die "no whole stream: $(cat "$T/body")"
# Its own name for the model stays with the engine; the decision can be explained.
sed -n 's/^data: {/{/p' "$T/body" | jq -es 'length == 4 and all(.model == "tiny")' >/dev/null ||
  die "another model answers: $(cat "$T/body")"
curl -fsS -m 5 "http://$http/explain/$(header x-request-id)" |
  jq -e '.decisions[0].prefill == "p" and .decisions[0].decode == "d" and .outcome.status == 200' >/dev/null ||
  die "the decision for a pair is not explained"

engine whole both
register whole
other=$(jq -nc '[range(101; 166)]')
until_true 30 "the whole engine is not up" sh -c "curl -fsS -m 5 http://$http/cluster |
  jq -e '.nodes[] | select(.name == \"whole\") | .up'"
curl -fsS -m 5 "$(jq -r .url "$T/whole.json")/v1/completions" -o "$T/out" -H 'x-request-id: w' \
  -d "{\"model\":\"org/tiny\",\"prompt\":$other}" # on the engine itself: its events report it
until_true 30 "what the whole engine cached is not known" indexed whole 4
ask "\"prompt\":$other"
[ "$(header x-mc-prefill) $(header x-mc-decode)" = "whole whole" ] ||
  die "not sent where it is cached: $(cat "$T/headers")"
[ "$(jq -r .model "$T/body")" = tiny ] || die "another model answers: $(cat "$T/body")"

kill_9 conductor
conductor
until_true 30 "the engines are forgotten" ready
for name in p d whole; do
  curl -fsS -m 5 "http://$http/cluster" | jq -e ".nodes[] | select(.name == \"$name\")" >/dev/null ||
    die "$name is forgotten"
done
until_true 30 "what an engine has cached is not told again" indexed whole 4

kill_9 whole
down() {
  curl -fsS -m 5 "http://$http/cluster" | jq -e '.nodes[] | select(.name == "whole") | .up | not'
}
until_true 30 "a dead engine counts as up" down
ask "\"prompt\":$other"
[ "$(header x-mc-prefill)" = p ] || die "sent to a dead engine: $(cat "$T/headers")"
stop conductor
