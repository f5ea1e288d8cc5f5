#!/usr/bin/env bash
# The sample trace through a whole cluster: all requests finish, no KV byte is wrong, and the prefix
# hits are those that analyze predicts, less what concurrent siblings cannot share.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"
sample 60
cluster_up --prefill 2 --decode 2 --store 2 --block-size 512

expect 0 "$MC_BIN/mc-replay" run --trace "$T/trace.jsonl" --url "$URL" --speed 4 --max-lag 10s \
  --output json --requests "$T/requests.jsonl" --require 'kv-errors==0' --require 'hit-tokens>0'
cp "$T/out" "$T/run.json"
jq -e '.requests.sent == 60 and .requests.ok == 60 and .requests.failed == 0' "$T/run.json" >/dev/null ||
  die "not every request finished: $(jq -c .requests "$T/run.json")"
[ "$(wc -l <"$T/requests.jsonl")" = 60 ] || die "not a line per request"
# Each can be looked up.
id=$(sed -n 7p "$T/requests.jsonl" | jq -r .request_id)
curl -fsS "$URL/explain/$id" | jq -e '.decisions | length > 0' >/dev/null || die "no decision of $id"

expect 0 "$MC_BIN/mc-replay" analyze "$T/trace.jsonl" --output json --cache-tokens 2000000
predicted=$(jq '[.. | objects | .hit_tokens? // empty] | max' "$T/out")
hits=$(jq .cache.hit_tokens "$T/run.json")
[ "$hits" -gt 0 ] && [ "$hits" -le "$predicted" ] ||
  die "hit tokens $hits, analyze predicts at most $predicted"
[ $((hits * 100)) -ge $((predicted * 80)) ] ||
  die "hit tokens $hits are under 80 % of the $predicted that analyze predicts"

# What the cluster says about itself agrees with what the client saw.
curl -fsS "$URL/cluster" >"$T/cluster.json"
jq -e '[.nodes[] | select(.role == "prefill")] | length == 2' "$T/cluster.json" >/dev/null ||
  die "/cluster does not show two prefill workers"
curl -fsS "$URL/metrics" >"$T/metrics"
grep -q '^mc_conductor_requests_total{.*code="200"' "$T/metrics" || die "no request counter in /metrics"
# What pickers in front of vLLM's servers read of an engine, each worker says too.
for worker in p0 d0; do
  curl -fsS "http://$(jq -r .http "$T/cluster/$worker.json")/metrics" >"$T/metrics"
  for name in num_requests_running num_requests_waiting kv_cache_usage_perc cache_config_info; do
    grep -q "^vllm:${name}[{ ]" "$T/metrics" || die "$worker has no vllm:$name"
  done
done
# Once idle, every block of the workers is free or cached: nothing leaked.
for worker in p0 p1 d0 d1; do
  http=$(jq -r .http "$T/cluster/$worker.json")
  until_true 30 "$worker still has blocks in use" bash -c \
    "curl -fsS http://$http/metrics | awk '/^mc_engine_blocks\{.*state=\"used\"/ { found=1; exit \$2 != 0 } END { exit !found }'"
done
