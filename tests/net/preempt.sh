#!/usr/bin/env bash
# Answers that run out of blocks, beside a store, on a worker that also computes prompts and on one that does not: with half the
# blocks of all answers each is the text that it is with room, whatever becomes of the KV of those that wait, and nothing stays.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"

REQUESTS=6 TOKENS=300
ask() { # I -> the answer to request I
  jq -cn --arg model "$model" --arg prompt "Story number $1 tells of a worker whose blocks run out" \
    --argjson n "$TOKENS" \
    '{model: $model, prompt: $prompt, max_tokens: $n, temperature: 0, ignore_eos: true}' |
    curl -fsS -m 120 -H 'content-type: application/json' -d @- "$URL/v1/completions"
}
ask_all() { # NAME: the texts, in $T/NAME; all at once
  local i pids=()
  for i in $(seq "$REQUESTS"); do ask "$i" >"$T/answer$i" & pids+=($!); done
  for i in "${pids[@]}"; do wait "$i" || die "$1: an answer failed: $(loopback logs | tail -5)"; done
  for i in $(seq "$REQUESTS"); do jq -r '.choices[0].text' "$T/answer$i"; done >"$T/$1"
}
up() {
  cluster_up --engine cpu --block-size 16 --segment 64MiB --store 1 "$@"
  model=$(curl -fsS "$URL/v1/models" | jq -r '.data[0].id')
}
metric() { # WORKER PATTERN: the sum of the lines
  curl -fsS "http://$(jq -r .http "$T/cluster/$1.json")/metrics" |
    awk -v what="$2" '$0 ~ "^" what { n += $2 } END { printf "%d\n", n }'
}
preempted() { metric "$1" vllm:num_preemptions_total; }

up --both 1 --pool 64MiB
ask_all wide
[ "$(preempted b0)" = 0 ] || die "answers were preempted with room for all"
blocks=0
for i in $(seq "$REQUESTS"); do
  blocks=$((blocks + ($(jq .usage.prompt_tokens "$T/answer$i") + TOKENS + 15) / 16))
done
loopback down

# tight NAME WORKER ROLE WAY OPTIONS...: half of these blocks for the worker; preempted KV goes that way (any: the fastest)
tight() {
  local name=$1 worker=$2 role=$3 way=$4 round
  shift 4
  up --pool 64MiB --with "$role:--blocks $((blocks / 2))" "$@"
  for round in 1 2 3 4 5; do
    ask_all "$name"
    cmp "$T/wide" "$T/$name" || die "$name: answers that were preempted say something else"
    [ "$(preempted "$worker")" = 0 ] || break
  done
  [ "$(preempted "$worker")" -gt 0 ] || die "$name: nothing was preempted in $round rounds"
  [ "$way" = any ] || [ "$(metric "$worker" "mc_engine_preempted_kv_total.*$way")" -gt 0 ] ||
    die "$name: no KV went the way $way"
  rest_within 20 "$name"
  loopback down
}
tight both-pool b0 prefill pool --both 1 --with 'prefill:--preempt swap --swap-memory 0'
tight both-computed b0 prefill recompute --both 1 --with 'prefill:--preempt recompute'
tight both-fastest b0 prefill any --both 1
tight apart-pool d0 decode pool --prefill 1 --decode 1 --with 'decode:--preempt swap --swap-memory 0'
