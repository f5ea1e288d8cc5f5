#!/usr/bin/env bash
# A context stays cached for its time while other prompts come and go; one that nobody marked does
# not; what is ephemeral takes the place of nothing. Prompts that queue are announced to the store.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"
cluster_up --prefill 1 --decode 1 --store 0 --with 'prefill:--blocks 64' --with 'decode:--blocks 256'

n=1000
ask() { # FIRST-TOKEN [MEMBERS] -> cached tokens; of 2049 tokens, eight blocks that are whole
  jq -nc --argjson first "$1" --argjson more "${2:-null}" \
    '{model: "tiny", prompt: [range(0; 2049) | . + $first], max_tokens: 1} + ($more // {})' |
    curl -fsS -m 20 --json @- "$URL/v1/completions" | jq -r .usage.prompt_tokens_details.cached_tokens
}
flood() { # more than the pool holds
  for _ in 1 2 3 4 5 6 7 8 9; do
    n=$((n + 2100))
    ask $((n % 29000)) "$1" >/dev/null
  done
}
context="{\"cache_control\": {\"type\": \"context\", \"ttl\": \"$((20 * SLOW))s\"}}" # more than two floods take
ephemeral='{"cache_control": {"type": "ephemeral"}}'
ask 1 "$context" >/dev/null
ask 500 >/dev/null
flood "$ephemeral"
[ "$(ask 500)" = 2048 ] || die "what is ephemeral drove out what is not"
flood null
[ "$(ask 500)" = 0 ] || die "an ordinary prompt is still there: the test floods too little"
[ "$(ask 1)" = 2048 ] || die "a context is gone within its time"
out() { # asked of the index, for a use would keep it
  flood null
  jq -nc '{model: "tiny", token_ids: [range(0; 2049) | . + 1]}' |
    curl -fsS --json @- "$URL/query" | jq -e '.default.p0.longest_matched == 0' >/dev/null
}
until_true 120 "a context is kept for ever" out
status=$(curl -s -o "$T/body" -w '%{http_code}' --json \
  '{"model":"tiny","prompt":"x","cache_control":{"type":"forever"}}' "$URL/v1/completions")
[ "$status" = 400 ] || die "a strange type: $status: $(cat "$T/body")"
grep -q '"param":"cache_control"' "$T/body" || die "it does not name the param: $(cat "$T/body")"
loopback down

# With a store: the class goes along, and what waits in the queue is announced.
cluster_up --prefill 1 --decode 1 --store 1 --time-scale 40
ask 1 "$context" >/dev/null
pids=()
for i in 1 2 3 4; do
  ask $((i * 3000)) >/dev/null &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid"; done
hints() {
  [ "$(curl -fsS "http://$(jq -r .http "$T/cluster/p0.json")/metrics" |
    awk '$1 == "mc_engine_prefetch_hints_total" { print $2 }')" -ge 8 ]
}
until_true 30 "queued prompts are not announced" hints
