#!/usr/bin/env bash
# A prompt whose beginning a busy prefill worker has; the KV store has all of it, most of that on
# its disk only: /explain says for each candidate what it would take from itself, from the other
# worker, from the store's memory and from its disk, with the times; and what came of it.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"

# A block of 256 tokens is 256 KiB, and takes 51 ms to compute. Memory of the store is for 32 blocks.
cat >"$T/slow.json" <<'JSON'
{"name": "slow", "layers": 4, "kv-heads": 2, "head-dim": 32, "hidden": 128, "vocab": 32000,
 "element-bytes": 2, "context-max": 262144, "parameters": 10000000,
 "cost": {"c0-s": 0.01, "c1-s-per-token": 2e-4, "c2-s-per-token2": 2e-12, "load-bytes-per-s": 1e9,
          "t0-s": 0.002, "t1-s-per-request": 0.0002, "t2-s-per-token": 1e-9,
          "transfer-bytes-per-s": 2e9}}
JSON
mkdir "$T/disk"
cluster_up --prefill 2 --decode 1 --store 1 --engine dummy --model "$T/slow.json" --segment 8MiB \
  --with "store:--ssd $T/disk --ssd-size 256MiB --ssd-flush 50ms --no-ssd-promote" \
  --with "prefill:--pool-reuse always --pool-timeout 60s --pool-put-wait 50s --peer-timeout 10s" \
  --with "master:--on-slow-offload wait"

request() { # TOKENS: a jq expression; into $T/request
  jq -nc "{model: \"slow\", max_tokens: 2, prompt: ($1)}" >"$T/request"
}
complete() { # ID TOKENS
  request "$2"
  curl -fsS -m 120 -o "$T/answer" -H 'content-type: application/json' -H "x-request-id: $1" \
    --data-binary "@$T/request" "$URL/v1/completions" || die "$1 was not answered"
}
cluster_says() { curl -fsS -m 5 "$URL/cluster" | jq -e "$@" >/dev/null; }
explained() { # ID FILTER
  curl -fsS -m 10 "$URL/explain/$1" >"$T/explain.json"
  jq -e "$2" "$T/explain.json" >/dev/null || die "$1: $(jq -c . "$T/explain.json")"
}

# 62 full blocks, piece by piece, so that the store keeps up.
for n in 4000 8000 12000 16000; do
  complete "first-$n" "[range(1; $n + 1)]"
  until_true 60 "the store does not have $n tokens" cluster_says ".pool.blocks >= ($n / 256 | floor)"
done
restart() { # NAME: until the conductor knows the new process
  local epoch
  epoch=$(curl -fsS -m 5 "$URL/cluster" | jq --arg name "$1" '[.nodes[] | select(.name == $name).epoch] | add // 0')
  loopback restart "$1" >/dev/null
  until_true 20 "$1 did not join again" cluster_says --arg name "$1" --argjson old "$epoch" \
    '.nodes[] | select(.name == $name and .epoch > $old and .synced and .pool_reuse == "always")'
}
restart p0
restart p1

# No worker has anything: all would come from the store, most of it from its disk.
request '[range(1; 16001)]'
curl -fsS -m 10 -H 'content-type: application/json' --data-binary "@$T/request" "$URL/debug/route" \
  >"$T/route.json"
jq -e '.candidates | length == 2 and all(.local_tokens == 0 and .peer_tokens == 0 and
  .fetch_ms == 0 and .pool_memory_tokens + .pool_disk_tokens == 15872 and
  .pool_disk_tokens >= 30 * 256 and .pool_ms > 0 and .reused_tokens == 15872)' "$T/route.json" \
  >/dev/null || die "the route: $(jq -c . "$T/route.json")"

# One worker gets the first 31 blocks. Then it computes for 14 s what begins with them. There is no
# other meanwhile, to which so long a prompt might go as well.
loopback kill p1
until_true 20 "p1 is not gone" cluster_says '.nodes | all(.name != "p1")'
complete half '[range(1; 8001)]'
explained half '.outcome.cached_tokens == 7936 and .outcome.pool_tokens == 7936'
request '[range(1; 8001)] + [range(70000) | 20001 + . % 11000]'
curl -sS -m 120 -o "$T/busy" -H 'content-type: application/json' -H 'x-request-id: busy' \
  --data-binary "@$T/request" "$URL/v1/completions" &
busy=$!
until_true 20 "p0 is not busy" cluster_says '.nodes[] | select(.name == "p0").queue_ms > 4000'
restart p1

# Both the other worker and the store have its beginning: that is read from the worker, the rest from the
# store. The holder itself would have to wait.
complete whole '[range(1; 16001)]'
explained whole '.decisions[0] as $d | ($d.candidates | map({(.name): .}) | add) as {p0: $holder, p1: $other} |
  $d.prefill == "p1" and $holder.local_tokens == 7936 and
  $holder.peer_tokens == 0 and $holder.queue_ms > 2000 and
  $other.local_tokens == 0 and $other.peer_tokens == 7936 and $other.fetch_ms > 0 and
  $other.queue_ms == 0 and $other.pool_memory_tokens + $other.pool_disk_tokens == 7936 and
  $other.pool_ms > 0 and $other.reused_tokens == 15872 and
  ($d.reused_from | test("^7936 from a peer, .* from the pool")) and
  .outcome.prefill == "p1" and .outcome.cached_tokens == 15872 and
  .outcome.peer_tokens + .outcome.pool_tokens == 15872'
kill $busy 2>/dev/null || true
wait $busy || true
