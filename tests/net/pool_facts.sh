#!/usr/bin/env bash
# A prompt that only the KV store has is predicted as it is answered: after a restart of the prefill
# worker no SLO between fetching and computing refuses it, and /explain says where its blocks are.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"

# Of the shape of tiny, but slow: the model's times, not this machine's, are most of what is measured. A
# piece of 4,000 tokens takes 0.9 s, the whole prompt 2.1 s, the promise is between them: 0.6 s from either.
cat >"$T/slow.json" <<'JSON'
{"name": "slow", "layers": 4, "kv-heads": 2, "head-dim": 32, "hidden": 128, "vocab": 32000,
 "element-bytes": 2, "context-max": 262144, "parameters": 10000000,
 "cost": {"c0-s": 0.5, "c1-s-per-token": 1e-4, "c2-s-per-token2": 2e-12, "load-bytes-per-s": 1e9,
          "t0-s": 0.002, "t1-s-per-request": 0.0002, "t2-s-per-token": 1e-9,
          "transfer-bytes-per-s": 2e9}}
JSON
cluster_up --prefill 1 --decode 1 --store 1 --engine dummy --model "$T/slow.json" \
  --with 'conductor:--ttft-slo 1500ms'

request() { # FIRST LAST: a prompt of these tokens, into $T/request
  printf '{"model":"slow","max_tokens":2,"prompt":[%s]}' "$(seq -s, "$1" "$2")" >"$T/request"
}
complete() { # STATUS ID
  local got
  got=$(curl -s -m 60 -o "$T/answer" -w '%{http_code}' -H 'content-type: application/json' \
    -H "x-request-id: $2" --data-binary "@$T/request" "$URL/v1/completions")
  [ "$got" = "$1" ] || die "$2: status $got, not $1: $(head -c 300 "$T/answer")"
}
pool_has() { [ "$(curl -fsS -m 5 "$URL/cluster" | jq .pool.blocks)" -ge "$1" ]; }

# Piece by piece, each soon enough; 62 full blocks.
for n in 4000 8000 12000 16000; do
  request 1 $n
  complete 200 "first-$n"
  until_true 20 "the conductor does not see the pool's blocks" pool_has $((n / 256))
done

worker_joined() {
  curl -fsS -m 5 "$URL/cluster" | jq -e --argjson old "$1" \
    '.nodes[] | select(.name == "p0" and .epoch > $old and .synced and .pool_reuse == "auto")'
}
# A machine that was busy meanwhile says nothing of times: six goes.
for go in 1 2 3 4 5 6; do
  epoch=$(curl -fsS -m 5 "$URL/cluster" | jq '.nodes[] | select(.name == "p0").epoch')
  loopback restart p0 >/dev/null
  until_true 20 "p0 did not join again" worker_joined "$epoch"
  request 1 16000
  curl -fsS -m 10 -H "content-type: application/json" --data-binary "@$T/request" \
    "$URL/debug/route" >"$T/route.json"
  jq -e '.verdict == "accept" and .reused_tokens == 15872 and
    .candidates[0].pool_memory_tokens == 15872 and .candidates[0].pool_ms > 0' "$T/route.json" \
    >/dev/null || die "the route says nothing of the pool: $(cat "$T/route.json")"
  complete 200 "again-$go"
  curl -fsS -m 10 "$URL/explain/again-$go" >"$T/explain.json"
  jq -e '.decisions[0].reused_from == "15872 from the pool'"'"'s memory" and
    .outcome.pool_tokens == 15872' "$T/explain.json" >/dev/null ||
    die "explained otherwise: $(cat "$T/explain.json")"
  ! jq -e '.outcome | (.predicted_ttft_ms / .ttft_ms - 1 | fabs) < 0.2' "$T/explain.json" \
    >/dev/null || break
  [ "$go" -lt 6 ] || die "predicted worse than within 20 %: $(jq -c .outcome "$T/explain.json")"
done
jq -r '.outcome | "predicted \(.predicted_ttft_ms) ms, took \(.ttft_ms) ms"' "$T/explain.json"

# What nobody has is refused as before.
request 16001 31999
complete 429 other
curl -fsS -m 5 "$URL/metrics" >"$T/metrics"
for metric in 'mc_conductor_pool_blocks [1-9]' \
  'mc_conductor_pool_predicted_tokens_total{tier="memory"} [1-9]' \
  'mc_conductor_pool_tokens_total [1-9]'; do
  grep -q "^$metric" "$T/metrics" || die "no $metric: $(grep mc_conductor_pool "$T/metrics")"
done
