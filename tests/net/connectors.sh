#!/usr/bin/env bash
# Real tokens by every connector: prompts with shared beginnings get the same text however their KV
# came, with blocks reused, evicted and lost; and a worker killed meanwhile leaves nothing behind.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"

models=${MC_TEST_SHARED:-/nowhere}/models
of=(--engine cpu)
[ ! -d "$models/stories260K" ] || of=(--model "$models/stories260K/hf-f32")

ask() { # PROMPT TOKENS -> its text
  jq -cn --arg model "$model" --arg prompt "$1" --argjson n "$2" \
    '{model: $model, prompt: $prompt, max_tokens: $n, temperature: 0, ignore_eos: true}' |
    curl -fsS -m 60 -H 'content-type: application/json' -d @- "$URL/v1/completions" >"$T/answer.json" ||
    die "$name: no answer: $(cat "$T/answer.json")"
  jq -r '.choices[0].text' "$T/answer.json"
}
up() { # NAME OPTIONS...
  name=$1
  shift
  cluster_up "${of[@]}" --block-size 16 --segment 16MiB "$@"
  model=$(curl -fsS "$URL/v1/models" | jq -r '.data[0].id')
}
metric() { # WORKER NAME -> the sum of its values
  curl -fsS "http://$(jq -r .http "$T/cluster/$1.json")/metrics" |
    awk -v name="$2" 'index($1, name) == 1 { n += $2 } END { print n + 0 }'
}
at_rest() { # WORKER: no block in use
  [ "$(metric "$1" 'mc_engine_blocks{state="used"}')" = 0 ]
}
served() { # NAME OPTIONS...: the answers of a cluster of that shape, in $T/NAME
  local i
  up "$@"
  for i in 1 2 3 4; do
    ask "Once upon a time there was a girl who told a story, and it went like this: number $i" 40
    ask "Once upon a time there was a girl" $((10 + i))
  done >"$T/$name"
  for worker in p0 d0; do until_true 30 "$name: $worker holds blocks" at_rest $worker; done
  [ "$(metric d0 mc_engine_kv_errors_total)" = 0 ] || die "$name: KV errors"
  [ "$name" = push ] || cmp "$T/push" "$T/$name" || die "$name says something else than push"
}
served push --prefill 1 --decode 1 --store 0 --pool 16MiB --with 'prefill:--connector push'
ask "Once upon a time there was a girl" 11 >"$T/short"
[ "$(wc -c <"$T/push")" -gt 300 ] || die "hardly any text: $(cat "$T/push")"
loopback down
served push-late --prefill 1 --decode 1 --store 0 --pool 16MiB \
  --with 'prefill:--connector push --layerwise off'
loopback down
served pull --prefill 1 --decode 1 --store 0 --pool 16MiB --transport tcp \
  --with 'prefill:--connector pull'
[ "$(metric d0 mc_engine_kv_transfer_bytes_total)" -gt 0 ] || die "the decode worker read nothing"
loopback down
served pool --prefill 2 --decode 2 --store 1 --pool 16MiB --policy random \
  --with 'prefill:--connector pool --pool-reuse always'
[ $(($(metric d0 mc_engine_pool_kv_blocks_total) + $(metric d1 mc_engine_pool_kv_blocks_total))) -gt 0 ] ||
  die "no block came through the store"
loopback down
# Pools of a few blocks: what is cached is evicted again and again.
served multi --prefill 2 --decode 1 --store 1 --pool 1MiB --segment 1MiB --policy random \
  --with 'prefill:--connector multi --pool-reuse always --blocks 12'
loopback down

# A rail that loses every byte: the decode worker computes what does not come, with the same text.
echo '{"op": "write", "drop": true}' >"$T/drop"
up lost --prefill 1 --decode 1 --store 0 --pool 16MiB --transport tcp \
  --with "prefill:--connector push --fault $T/drop --peer-timeout 2s" \
  --with 'decode:--recompute-after 300ms'
ask "Once upon a time there was a girl" 11 >"$T/lost"
[ "$(cat "$T/lost")" = "$(cat "$T/short")" ] ||
  die "computed by the decode worker it says: $(cat "$T/lost"), not: $(cat "$T/short")"
[ "$(metric d0 mc_engine_recomputed_requests_total)" = 1 ] || die "it was not the decode worker"
until_true 30 "lost: p0 holds blocks" at_rest p0
until_true 30 "lost: d0 holds blocks" at_rest d0
loopback down

# A worker killed while answers stream: the other one's blocks come back.
for connector in push pull pool; do
  for victim in p0 d0; do
    other=$([ $victim = p0 ] && echo d0 || echo p0)
    up "$connector-$victim" --prefill 1 --decode 1 --store 1 --pool 16MiB \
      --with "prefill:--connector $connector --peer-timeout 500ms" --with 'decode:--kv-deadline 1s'
    for i in 1 2 3 4 5 6; do
      curl -s -m 20 -o /dev/null -H 'content-type: application/json' -d "$(jq -cn --arg model "$model" \
        --arg i "$i" '{model: $model, prompt: ("A long story, number " + $i + ": once upon a time"),
          max_tokens: 200, ignore_eos: true}')" "$URL/v1/completions" &
    done
    begun() { [ "$(metric p0 mc_engine_computed_tokens_total)" -gt 0 ]; }
    until_true 30 "$name: nothing is computed" begun
    loopback kill $victim
    wait
    until_true 30 "$name: $other holds blocks" at_rest $other
    loopback down
  done
done
