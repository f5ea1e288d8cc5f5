#!/usr/bin/env bash
# A prefix that many requests share at once spreads: the worker that has it pins it for the one that
# is chosen in spite of it (no store), and later requests are hits there.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"
cluster_up --prefill 2 --decode 1 --store 0 --time-scale 40

prefix=$(jq -nc '[range(0; 16384) | . % 31000 + 1]')
ask() { # TAIL -> its answer in $T/TAIL.json; several at a time
  jq -nc --argjson p "$prefix" --argjson t "$1" \
    '{model: "tiny", prompt: ($p + [range(0; 300) | . + $t * 300]), max_tokens: 2}' |
    curl -fsS -m 60 --json @- "$URL/v1/completions" >"$T/$1.json"
}
of() { # WORKER METRIC
  curl -fsS "http://$(jq -r .http "$T/cluster/$1.json")/metrics" |
    awk -v m="$2" '$1 == m { n += $2 } END { printf "%d\n", n }'
}
both() { echo $(($(of p0 "$1") + $(of p1 "$1"))); }
ask_together() { # FIRST LAST
  local i pids=()
  for ((i = $1; i <= $2; ++i)); do
    ask "$i" &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i" || die "a request failed"; done
}

ask 0
ask_together 1 6
[ "$(both mc_engine_peer_tokens_total)" -ge 16384 ] ||
  die "no prefix was fetched: $(loopback logs conductor | grep 'request .*ttft' | tail -7)"
[ "$(both mc_engine_lent_blocks_total)" -ge 64 ] || die "pinned blocks are not counted"
loopback logs conductor | grep 'p[01] sends its prefix to p[01] -> d0' >/dev/null || die "no decision says so"
curl -fsS --json "{\"model\":\"tiny\",\"token_ids\":$prefix}" "$URL/query" >"$T/query.json"
jq -e '.default | .p0.longest_matched == 16384 and .p1.longest_matched == 16384' "$T/query.json" \
  >/dev/null || die "it does not stand on both: $(cat "$T/query.json")"

# From now on both hit by themselves, as soon as requests come closer together than one takes.
read -r peers hits0 hits1 <<<"$(both mc_engine_peer_tokens_total) \
  $(of p0 vllm:prefix_cache_hits_total) $(of p1 vllm:prefix_cache_hits_total)"
both_hit() {
  [ "$(of p0 vllm:prefix_cache_hits_total)" -ge $((hits0 + 16384)) ] &&
    [ "$(of p1 vllm:prefix_cache_hits_total)" -ge $((hits1 + 16384)) ]
}
for ((first = 7; first <= 49; first += 6)); do
  ask_together "$first" $((first + 5))
  if both_hit; then break; fi
done
both_hit || die "one worker alone had all the hits: $(loopback logs conductor | tail -5)"
[ "$(both mc_engine_peer_tokens_total)" = "$peers" ] || die "a prefix was fetched again"
for i in 7 8 9 10 11 12; do
  jq -e '.usage.prompt_tokens_details.cached_tokens >= 16384' "$T/$i.json" >/dev/null ||
    die "request $i is no hit: $(cat "$T/$i.json")"
done
curl -fsS "$URL/cluster" | jq -e '.kv_errors == 0' >/dev/null || die "KV did not verify"
rest_within 30
echo "from peers: $peers tokens"
