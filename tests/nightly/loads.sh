#!/usr/bin/env bash
# Load generators that people use, against mc-conductor with own workers and a small real model: guidellm
# and aiperf of build/loads, `vllm bench serve` of build/engines. Every request has its answer. Minutes.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/../net/cluster.inc"
loads=${MC_LOADS:-$MC_SOURCE/build/loads}
vllm=${MC_ENGINES:-$MC_SOURCE/build/engines}/vllm-0.32.0/bin/vllm
model=${MC_TEST_SHARED:-$MC_SOURCE/../shared}/models/stories260K/hf-f32
[ -d "$model" ] || skip "no model in $model"
[ -e "$loads/ready" ] || [ -x "$vllm" ] ||
  skip "no load generators in $loads: scripts/setup --clients loads makes it"
cluster_up --prefill 1 --decode 1 --store 0 --model "$model" --block-size 16
name=$(curl -fsS -m 10 "$URL/v1/models" | jq -r '.data[0].id')
run() { # NAME COMMAND...
  (cd "$T" && timeout 600 "${@:2}" >"$T/$1.log" 2>&1 </dev/null) || { tail -50 "$T/$1.log" >&2; die "$1: see above"; }
}
answered() { # NAME WANTED COUNT
  [ "$3" = "$2" ] || { tail -50 "$T/$1.log" >&2; die "$1: $3 of $2 requests were answered"; }
  echo "$1: $3 requests"
}
if [ -e "$loads/ready" ]; then
  for ((i = 0; i < 40; ++i)); do
    echo "{\"prompt\": \"Once there was a dog with number $i. It ran\", \"output_tokens_count\": 16}"
  done >"$T/prompts.jsonl"
  HF_HUB_OFFLINE=1 run guidellm "$loads/bin/guidellm" run --backend "kind=openai_http,target=$URL,model=$name" \
    --profile kind=concurrent,streams=4 --constraint kind=max_requests,count=20 \
    --data "kind=json_file,path=$T/prompts.jsonl" --output "kind=json,path=$T/guidellm.json" --disable-console-interactive
  answered guidellm 20 "$(jq '.benchmarks[0].requests.successful | length' "$T/guidellm.json")"
  run aiperf "$loads/bin/aiperf" profile -m "$name" -u "$URL" --endpoint-type chat --streaming --tokenizer "$model" \
    --request-count 20 --concurrency 4 --synthetic-input-tokens-mean 40 --synthetic-input-tokens-stddev 0 \
    --output-tokens-mean 16 --ui none --output-artifact-dir "$T/aiperf"
  answered aiperf 20 "$(jq '.request_count.avg | floor' "$T/aiperf/profile_export_aiperf.json")"
fi
if [ -x "$vllm" ]; then
  for backend in openai openai-chat; do
    path=/v1/completions
    [ $backend = openai ] || path=/v1/chat/completions
    run vllm-$backend "$vllm" bench serve --backend $backend --endpoint $path --base-url "$URL" --model "$name" \
      --tokenizer "$model" --dataset-name random --random-input-len 64 --random-output-len 16 --num-prompts 20 \
      --max-concurrency 4 --ignore-eos --save-result --result-dir "$T" --result-filename "$backend.json"
    answered vllm-$backend 20 "$(jq .completed "$T/$backend.json")"
  done
fi
