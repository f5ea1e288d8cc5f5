#!/usr/bin/env bash
# Of two nodes of the KV store one is slow for the prefill worker. Once something was fetched from each,
# the conductor predicts what each takes, and prompts on the slow one are computed, the others fetched.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"

# 3,100 tokens are 12 full blocks of 256 KiB: 37 ms of computing. From s1 they take a second.
cat >"$T/slow.json" <<'JSON'
{"name": "slow", "layers": 4, "kv-heads": 2, "head-dim": 32, "hidden": 128, "vocab": 32000,
 "element-bytes": 2, "context-max": 262144, "parameters": 10000000,
 "cost": {"c0-s": 0.01, "c1-s-per-token": 1.2e-5, "c2-s-per-token2": 2e-12, "load-bytes-per-s": 1e9,
          "t0-s": 0.002, "t1-s-per-request": 0.0002, "t2-s-per-token": 1e-9,
          "transfer-bytes-per-s": 2e9}}
JSON
echo '{"op": "read", "peer": "s1", "bandwidth": "3MiB"}' >"$T/fault.jsonl"
cluster_up --prefill 1 --decode 1 --store 2 --engine dummy --model "$T/slow.json" --transport tcp \
  --with "prefill:--fault $T/fault.jsonl --pool-timeout 10s --peer-timeout 10s"

request() { # FIRST: a prompt of 3,100 tokens from this one on, into $T/request
  printf '{"model":"slow","max_tokens":2,"prompt":[%s]}' "$(seq -s, "$1" $(($1 + 3099)))" >"$T/request"
}
complete() { # ID FIRST
  request "$2"
  curl -fsS -m 60 -o "$T/answer" -H 'content-type: application/json' -H "x-request-id: $1" \
    --data-binary "@$T/request" "$URL/v1/completions" || die "$1 was not answered"
}
pool_has() { [ "$(curl -fsS -m 5 "$URL/cluster" | jq .pool.blocks)" -ge "$1" ]; }
store() {
  local verb=$1
  shift
  "$MC_BIN/mc-store" "$verb" "$@" --master "$MASTER" --cluster-key "$T/cluster/cluster.key"
}
keys() { store ls --output json | jq -r .key | sort; }

# Prompts 1 and 5001 lie on s0, 10001 and 15001 on s1.
complete a 1
complete b 5001
until_true 20 "the pool does not have two prompts" pool_has 24
keys >"$T/s0.keys"
complete c 10001
complete d 15001
until_true 20 "the pool does not have four prompts" pool_has 48
keys | comm -13 "$T/s0.keys" - >"$T/s1.keys"
for node in s0 s1; do
  while read -r key; do
    store mv "$key" --to $node >/dev/null 2>"$T/mv.txt" || grep -q 'has one already' "$T/mv.txt" ||
      die "mv: $(cat "$T/mv.txt")"
  done <"$T/$node.keys"
done
# The conductor hears of changes in their order.
echo mark | store put "$(head -1 "$T/s0.keys" | sed 's/@[^@]*$//')@$(printf %064x 1)" >/dev/null
until_true 20 "the conductor did not hear of the last change" pool_has 49

worker_joined() {
  curl -fsS -m 5 "$URL/cluster" | jq -e --argjson old "$epoch" \
    '.nodes[] | select(.name == "p0" and .epoch > $old and .synced and .pool_reuse == "auto")'
}
epoch=$(curl -fsS -m 5 "$URL/cluster" | jq '.nodes[] | select(.name == "p0").epoch')
loopback restart p0 >/dev/null
until_true 20 "p0 did not join again" worker_joined

# One of each is fetched, as nothing is known; then the rates are.
learn() { # ID FIRST
  complete "$1" "$2"
  curl -fsS -m 10 "$URL/explain/$1" >"$T/explain.json"
  jq -e '.outcome.pool_tokens == 3072' "$T/explain.json" >/dev/null ||
    die "$1 was not fetched: $(cat "$T/explain.json")"
  curl -fsS -m 5 "$URL/cluster" >"$T/rates.json"
}
learn learn-s0 1
# Where the machine stood still in that fetch, nodes seem slow, and nothing more is fetched.
jq -e '.pool_nodes | map(select(.name == "s0"))[0].bytes_per_s > 3145728 / 0.025' "$T/rates.json" >/dev/null ||
  skip "a fetch from the quick node took too long on this machine: $(jq -c .pool_nodes "$T/rates.json")"
learn learn-s1 10001
jq -e '(.pool_nodes | map({(.name): .bytes_per_s}) | add) as $rate | $rate.s0 > 5 * $rate.s1' \
  "$T/rates.json" >/dev/null || die "rates of nodes: $(jq -c .pool_nodes "$T/rates.json")"

complete quick 5001
complete slow 15001
explained() { # ID FILTER
  curl -fsS -m 10 "$URL/explain/$1" >"$T/explain.json"
  jq -e "$2" "$T/explain.json" >/dev/null || die "$1: $(cat "$T/explain.json")"
}
explained quick '.decisions[0].candidates[0].pool_memory_tokens == 3072 and .outcome.pool_tokens == 3072'
explained slow '.decisions[0].candidates[0].pool_memory_tokens == 0 and .outcome.pool_tokens == 0'
