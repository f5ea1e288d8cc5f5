#!/usr/bin/env bash
# Clusters say what one process says: the built-in model, however it is served, and the small real
# model as an independent engine has it.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"

ask() { # JSON of the request without model -> its text, and $T/answer.json
  jq -c --arg model "$model" '. + {model: $model}' <<<"$1" |
    curl -fsS -m 60 -H 'content-type: application/json' -d @- "$URL/v1/completions" >"$T/answer.json" ||
    die "no answer to $1: $(cat "$T/answer.json")"
  jq -r '.choices[0].text' "$T/answer.json"
}
answers() { # NAME: those of the cluster, in $T/NAME
  local i
  model=$(curl -fsS "$URL/v1/models" | jq -r '.data[0].id')
  for i in 1 2 3; do # the second and third reuse blocks of the first
    ask "{\"prompt\": \"A story of many words heard again and again, number $i\",
          \"max_tokens\": 24, \"temperature\": 0, \"ignore_eos\": true}"
    ask "{\"prompt\": \"A story of many words heard again and again, number $i\",
          \"max_tokens\": 24, \"temperature\": 0.8, \"top_k\": 40, \"top_p\": 0.9, \"seed\": $i}"
  done >"$T/$1"
}
served() { # NAME OPTIONS...: the answers of a cluster of that shape
  local name=$1
  shift
  cluster_up --engine cpu --block-size 16 --pool 16MiB --segment 16MiB "$@"
  answers "$name"
  loopback down
}
served one --prefill 1 --decode 1 --store 0
# (The prefill workers' blocks are laid out for two tensor-parallel ranks, those of decode for one.)
served many --prefill 2 --decode 2 --store 1 --transport tcp --with 'prefill:--chunk-tokens 32' \
  --with 'prefill:--tp 2' \
  --with 'prefill:--threads 1' --with 'decode:--kernels plain' --policy random
cmp "$T/one" "$T/many" || die "another cluster says something else: $(diff "$T/one" "$T/many")"
[ "$(wc -c <"$T/one")" -gt 200 ] || die "hardly any text: $(cat "$T/one")"

# Two pipelines of two processes that have the layers between them, over a pool; then with a stage
# and a store node gone, and with the stage back.
pipeline() { curl -fsS "$(loopback url p0)/state" | jq -e ".pipeline | $1" >/dev/null; }
until_pipeline() { # CONDITION on p0's pipeline
  local deadline=$((SECONDS + 60 * SLOW))
  until pipeline "$1"; do
    [ $SECONDS -lt $deadline ] || die "p0's pipeline is not $1: $(curl -fsS "$(loopback url p0)/state")"
    pause_briefly
  done
}
cluster_up --engine cpu --block-size 16 --pool 16MiB --segment 16MiB --prefill 2 --cpp-group 2 \
  --decode 2 --store 2 --transport tcp --policy random --with 'prefill:--chunk-tokens 32'
until_pipeline .ready
answers pipelines
cmp "$T/one" "$T/pipelines" || die "pipelines say something else: $(diff "$T/one" "$T/pipelines")"
loopback kill p0.2
loopback kill s1
until_pipeline '.ready == false'
answers half
cmp "$T/one" "$T/half" || die "without a stage something else is said: $(diff "$T/one" "$T/half")"
loopback restart p0.2
until_pipeline .ready
answers again
cmp "$T/one" "$T/again" || die "after a stage came back: $(diff "$T/one" "$T/again")"
rest_within 30 'pipelines'
loopback down

# A pipeline over the pool alone, whose prompts come back from a disk: every process that had them in
# memory began anew.
metric() { # WORKER NAME
  curl -fsS "$(loopback url "$1")/metrics" | awk -v name="$2" '$1 == name { n += $2 } END { print n + 0 }'
}
put() { # blocks, by both
  local stored=mc_engine_pool_blocks_stored_total
  echo $(($(metric p0 $stored) + $(metric p0.2 $stored)))
}
on_disk() { [ "$(put)" -ge 6 ] && [ "$(metric s0 mc_ssd_objects)" -ge "$(put)" ]; }
disk_alone() {
  "$MC_BIN/mc-store" ls --master "$(jq -r .control "$T/cluster/master.json")" \
    --cluster-key "$T/cluster/cluster.key" >"$T/listed" 2>/dev/null &&
    [ -s "$T/listed" ] && ! grep -qv ' 0+disk ' "$T/listed"
}
cluster_up --engine cpu --block-size 16 --pool 16MiB --segment 16MiB --prefill 1 --cpp-group 2 \
  --decode 1 --store 1 --transport tcp --with 'prefill:--chunk-tokens 32 --pool-reuse always --connector pool' \
  --with "store:--ssd $T/ssd --ssd-size 64MiB --no-ssd-promote --ssd-flush 50ms" \
  --with 'master:--offload eager'
until_pipeline .ready
answers stored
cmp "$T/one" "$T/stored" || die "a pipeline over a disk says something else: $(diff "$T/one" "$T/stored")"
until_true 60 "the disk does not get the blocks" on_disk
for process in s0 p0.2 p0; do loopback restart $process; done
until_true 60 "the restarted store node has copies in memory" disk_alone
until_pipeline .ready
answers loaded
cmp "$T/one" "$T/loaded" || die "blocks from a disk say something else: $(diff "$T/one" "$T/loaded")"
for process in p0 p0.2; do
  [ "$(metric $process mc_engine_pool_blocks_fetched_total)" -ge 2 ] ||
    die "$process had $(metric $process mc_engine_pool_blocks_fetched_total) blocks from the disk"
done
rest_within 30 'a pipeline over a disk'
loopback down

# What was measured of an engine is predicted with, and changes no answer.
"$MC_BIN/mc-prefill" --engine cpu --block-size 16 --pool 16MiB --calibrate "$T/times.json" \
  --calibrate-tokens 128 >"$T/calibrated" 2>"$T/calibrate.err" ||
  die "calibrate: $(cat "$T/calibrate.err")"
grep -q 'prompts: 15 points' "$T/calibrated" || die "calibrate says: $(cat "$T/calibrated")"
jq -e '.cost | .["c0-s"] + .["c1-s-per-token"] > 0 and .["t0-s"] + .["t2-s-per-token"] > 0' \
  "$T/times.json" >/dev/null || die "no times: $(cat "$T/times.json")"
served timed --prefill 1 --decode 1 --store 0 --with "prefill:--cost $T/times.json" \
  --with "decode:--cost $T/times.json" --with "conductor:--cost $T/times.json"
cmp "$T/one" "$T/timed" || die "with measured times something else is said"
sed 's/"layers": [0-9]*/"layers": 77/' "$T/times.json" >"$T/other.json"
"$MC_BIN/mc-prefill" --engine cpu --cost "$T/other.json" 2>"$T/refused" && die "times of another model"
grep -q -- '--cost: .* 77 layers' "$T/refused" || die "refused by: $(cat "$T/refused")"

models=${MC_TEST_SHARED:-/nowhere}/models
[ -d "$models/stories260K" ] || skip "the built-in model passed; no small real model in $models"
cluster_up --model "$models/stories260K/hf-f32" --prefill 1 --decode 1 --store 1 --block-size 16 \
  --pool 16MiB --segment 16MiB
model=$(curl -fsS "$URL/v1/models" | jq -r '.data[0].id')
story=$(timeout 60 "$MC_BIN/mc-conductor" chat --url "$URL/" --max-tokens 60 Once upon a time) ||
  die "chat: $story"
[ "$story" = "Once upon a time$(ask '{"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0}')" ] ||
  die "chat says: $story"
# Prompt and output fit the context; the oracle's last token is the end (1), which has no text.
jq -c '.cases[] | select((.prompt_tokens | length) + (.generated_tokens | length) <= 512)' \
  "$models/oracle/stories260K/greedy_f32.json" >"$T/cases"
[ "$(wc -l <"$T/cases")" -ge 15 ] || die "the oracle has few cases"
while read -r case; do
  jq -c '{prompt: .prompt_tokens, max_tokens: (.generated_tokens | length), temperature: 0,
          ignore_eos: .ignore_bos}' <<<"$case" >"$T/request"
  ask "$(cat "$T/request")" >"$T/text"
  jq -r '.text' <<<"$case" >"$T/want"
  cmp -s "$T/text" "$T/want" ||
    die "$(jq -r .name <<<"$case"): $(cat "$T/text") -- the oracle says: $(cat "$T/want")"
  jq -e --argjson n "$(jq '.generated_tokens | length' <<<"$case")" --arg finish \
    "$(jq -r 'if .finish == "bos" then "stop" else .finish end' <<<"$case")" \
    '.usage.completion_tokens == $n and .choices[0].finish_reason == $finish' "$T/answer.json" \
    >/dev/null || die "$(jq -r .name <<<"$case"): $(jq -c '.usage, .choices[0]' "$T/answer.json")"
done <"$T/cases"
