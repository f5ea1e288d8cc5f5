#!/usr/bin/env bash
# What a conductor records of its requests is a trace: it can be analyzed, simulated and played again,
# and then prompts begin alike as they did.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"
cluster_up --prefill 1 --decode 1 --store 0 --time-scale 0 --with "conductor:--record $T/recorded.jsonl"
sample 24
replay=$MC_BIN/mc-replay
play() { # TRACE BLOCK
  "$replay" run "$1" --block "$2" --url "$URL" --concurrency 4 --output json >"$T/run.json" ||
    die "$1 is not played: $(cat "$T/run.json")"
}
lengths() { jq -c '[.input_length, .output_length]' "$1" | sort; }
# Of the prompts by their lengths: for each block, where it was seen first.
shape() {
  jq -sc 'sort_by(.input_length, .output_length) | [.[].hash_ids[]] as $all | [$all[] as $id | $all | index($id)]' "$1"
}

play "$T/trace.jsonl" 512
[ "$(lengths "$T/recorded.jsonl")" = "$(lengths "$T/trace.jsonl")" ] || die "recorded $(cat "$T/recorded.jsonl")"
cp "$T/recorded.jsonl" "$T/first.jsonl"
expect 0 "$replay" analyze "$T/first.jsonl" --block 256 --strict
expect 0 "$replay" sim "$T/first.jsonl" --block 256 --model tiny --prefill 1 --decode 1 --output json
jq -e '.requests.ok == 24' "$T/out" >/dev/null || die "not all are simulated: $(cat "$T/out")"

play "$T/first.jsonl" 256
tail -n +25 "$T/recorded.jsonl" >"$T/second.jsonl"
[ "$(lengths "$T/second.jsonl")" = "$(lengths "$T/trace.jsonl")" ] || die "played again: $(cat "$T/second.jsonl")"
[ "$(shape "$T/first.jsonl")" = "$(shape "$T/second.jsonl")" ] || die "other prompts begin alike"
