#!/usr/bin/env bash
# Several answers to one request share the prompt's KV, differ, and repeat; penalties and logprobs
# come through a whole cluster, whose model computes.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"
cluster_up --engine cpu --block-size 16 --pool 16MiB --prefill 1 --decode 2 --store 0
model=$(curl -fsS "$URL/v1/models" | jq -r '.data[0].id')
ask() { # PATH JSON: the answer, in $T/answer.json
  jq -c --arg model "$model" '. + {model: $model}' <<<"$2" |
    curl -fsS -m 60 -H 'content-type: application/json' -d @- "$URL/v1/$1" >"$T/answer.json" ||
    die "no answer to $2"
}
holds() { jq -e "$1" "$T/answer.json" >/dev/null || die "not so: $1 in $(cat "$T/answer.json")"; }

# 100 tokens: six full blocks, computed once.
prompt=$(printf 'ten bytes.%.0s' {1..10})
request="{\"prompt\": \"$prompt\", \"n\": 4, \"seed\": 7, \"max_tokens\": 12, \"ignore_eos\": true}"
ask completions "$request"
holds '[.mc.choices[].cached_tokens] == [0, 96, 96, 96]'
holds '[.choices[].index] == [0, 1, 2, 3] and ([.choices[].text] | unique | length) == 4'
holds '.usage | .prompt_tokens == 100 and .completion_tokens == 48 and .prompt_tokens_details.cached_tokens == 0'
jq -c '[.choices[].text]' "$T/answer.json" >"$T/first"
ask completions "$request"
jq -c '[.choices[].text]' "$T/answer.json" | cmp - "$T/first" || die "the same seed gives other choices"
ask completions "$(jq -c '.n = 1' <<<"$request")"
holds ".choices[0].text == $(jq '.[0]' "$T/first")"
ask completions "$(jq -c '.prompt = ["x", .prompt] | .n = 2' <<<"$request")"
holds "[.choices[2, 3].text] == $(jq '.[:2]' "$T/first")"

# A frequency penalty, and what it was drawn from.
greedy="{\"prompt\": \"$prompt\", \"temperature\": 0, \"max_tokens\": 40, \"ignore_eos\": true, \"logprobs\": 2}"
repeats='(.choices[0].logprobs.tokens | length - (unique | length))'
ask completions "$greedy"
plain=$(jq "$repeats" "$T/answer.json")
[ "$plain" -gt 0 ] || die "no token is repeated: $(cat "$T/answer.json")"
holds '.choices[0].logprobs | .token_logprobs == [.top_logprobs[] | [.[]] | max]'
ask completions "$(jq -c '.frequency_penalty = 2' <<<"$greedy")"
[ "$(jq "$repeats" "$T/answer.json")" -lt "$plain" ] || die "a penalty takes no repeat away"
holds '.choices[0].logprobs | .token_logprobs != [.top_logprobs[] | [.[]] | max]'
ask chat/completions '{"messages": [{"role": "user", "content": "hi"}], "n": 2, "max_tokens": 3,
  "logprobs": true, "top_logprobs": 4, "logit_bias": {"65": 100}, "temperature": 0, "ignore_eos": true}'
holds '[.choices[].message.content] == ["AAA", "AAA"]'
holds '[.choices[].logprobs.content[] | .token == "A" and (.top_logprobs | length) == 4 and .logprob < 0] | all'
rest_within 30
