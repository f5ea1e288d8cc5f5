#!/usr/bin/env bash
# curl talks to the conductor: plain, streaming, and wrong in every usual way.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"
cluster_up --prefill 1 --decode 1 --store 1

post() { # JSON -> $T/body, prints the status
  curl -s -m 20 -o "$T/body" -w '%{http_code}' -H 'content-type: application/json' -d "$1" \
    "$URL/v1/completions"
}
check() { # STATUS JQ-CONDITION JSON
  local status
  status=$(post "$3")
  [ "$status" = "$1" ] || die "$3: status $status, want $1: $(cat "$T/body")"
  jq -e "$2" "$T/body" >/dev/null || die "$3: answer lacks $2: $(cat "$T/body")"
}
model=$(curl -fsS "$URL/v1/models" | jq -r '.data[0].id')
check 200 '.choices[0].finish_reason == "length" and .usage.completion_tokens == 8 and
  .usage.prompt_tokens == 13 and .object == "text_completion"' \
  "{\"model\":\"$model\",\"prompt\":\"hello, world!\",\"max_tokens\":8,\"ignore_eos\":true}"
check 200 '.usage.prompt_tokens == 5' "{\"model\":\"$model\",\"prompt\":[1,2,3,4,5],\"max_tokens\":2}"
check 400 '.error.type == "invalid_request_error"' '{"model":'
check 400 '.error.param == "prompt"' "{\"model\":\"$model\",\"prompt\":{\"a\":1}}"
check 400 '.error.param == "max_tokens"' "{\"model\":\"$model\",\"prompt\":\"x\",\"max_tokens\":\"ten\"}"
check 400 '.error.param == "n"' "{\"model\":\"$model\",\"prompt\":\"x\",\"n\":17}"
check 404 '.error.code == "model_not_found"' '{"model":"gpt-9","prompt":"x"}'
check 400 '.error.code == "context_length_exceeded"' \
  "{\"model\":\"$model\",\"prompt\":\"x\",\"max_tokens\":99999999}"

# A prompt as long as the context leaves no room for an answer; ids that no vocabulary has.
context=$(curl -fsS "$URL/v1/models" | jq '.data[0].max_model_len')
jq -nc --arg model "$model" --argjson n "$context" '{model: $model, prompt: [range($n) | 1]}' >"$T/long"
check 400 '.error.code == "context_length_exceeded"' "@$T/long"
check 400 '.error.param == "prompt"' "{\"model\":\"$model\",\"prompt\":[1,-1]}"
check 400 '.error.param == "prompt"' "{\"model\":\"$model\",\"prompt\":[1,4294967296]}"
check 400 '.error.param == "prompt"' "{\"model\":\"$model\",\"prompt\":[1,\"two\"]}"

curl -sN -m 20 -H 'content-type: application/json' -d "{\"model\":\"$model\",\"prompt\":\"stream\",
  \"max_tokens\":5,\"ignore_eos\":true,\"stream\":true,\"stream_options\":{\"include_usage\":true}}" \
  "$URL/v1/completions" >"$T/sse"
[ "$(grep -c '^data: {' "$T/sse")" -ge 6 ] || die "fewer events than tokens: $(cat "$T/sse")"
tail -n 3 "$T/sse" | grep -q '^data: \[DONE\]' || die "the stream does not end with [DONE]"
sed -n 's/^data: {/{/p' "$T/sse" | jq -es 'last.usage.completion_tokens == 5 and last.choices == []' \
  >/dev/null || die "no usage in the last chunk: $(tail -3 "$T/sse")"

# A prompt seen before comes from the cache, and says so; a cold one says 0.
prompt=$(jq -nc '[range(1; 1025)]')
check 200 '.usage.prompt_tokens_details.cached_tokens == 0' \
  "{\"model\":\"$model\",\"prompt\":$prompt,\"max_tokens\":2}"
cached() {
  [ "$(post "{\"model\":\"$model\",\"prompt\":$prompt,\"max_tokens\":2}")" = 200 ] &&
    jq -e '.usage.prompt_tokens_details.cached_tokens == 768' "$T/body"
}
until_true 30 "the second time is not served from the cache" cached

for page in live ready health metrics cluster v1/models; do
  curl -fsS -m 5 "$URL/$page" >/dev/null || die "/$page does not answer"
done
[ "$(curl -s -o /dev/null -w '%{http_code}' "$URL/nonsense")" = 404 ] || die "/nonsense is not 404"

# Text to tokens and back; why a request went where it went; settings and where they came from.
curl -fsS -m 5 "$URL/tokenize" --json '{"prompt":"hello"}' >"$T/tokens"
jq -e '.count == 5 and (.tokens | length) == 5' "$T/tokens" >/dev/null || die "$(cat "$T/tokens")"
[ "$(curl -fsS -m 5 "$URL/detokenize" --json "$(jq -c '{tokens}' "$T/tokens")" | jq -r .prompt)" = hello ] ||
  die "tokens do not become the text they came from"
curl -fsS -m 20 -H 'x-request-id: why' -o /dev/null "$URL/v1/completions" \
  --json "{\"model\":\"$model\",\"prompt\":\"why?\",\"max_tokens\":2}"
curl -fsS -m 5 "$URL/explain/why" >"$T/why"
jq -e '.outcome.status == 200 and .outcome.prefill == .decisions[0].prefill and
  .decisions[0].candidates[0].ttft_ms > 0' "$T/why" >/dev/null || die "$(cat "$T/why")"
curl -fsS -m 5 "$URL/config" >"$T/config"
jq -e '.policy == {value: "kvcache", origin: "flag"} and ."queue-max".origin == "default"' "$T/config" \
  >/dev/null || die "$(cat "$T/config")"
