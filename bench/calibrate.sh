#!/usr/bin/env bash
# A live loopback run against its own simulation: each part of the time to the first token, the time
# between tokens and the hit ratio. What this machine adds is read off a quiet run before. Once with
# caches that hold all, and once with caches that hold little above the KV store's pool.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
bin=${MC_BIN:-$root/build/release}
requests=400
[ "${1:-}" != --quick ] || requests=100
T=$(mktemp -d)
loopback() { "$root/scripts/loopback" "$@" --dir "$T/cluster" --bin "$bin"; }
trap 'loopback down >/dev/null 2>&1 || true; rm -rf "$T"' EXIT
# Times of the model that are large beside what a shared machine does to a process.
scale=50
"$bin/mc-replay" synth --profile sample --seed 1 --requests $requests --out "$T/trace.jsonl"
play() { # report, options...: in ${cluster[@]}
  local report=$1
  shift
  loopback up "${cluster[@]}" --block-size 512 --time-scale $scale >/dev/null
  "$bin/mc-replay" run "$T/trace.jsonl" --url "$(loopback url)" --report "$report" --max-lag 5s \
    "$@" >/dev/null
  curl -fsS "$(loopback url)/metrics" >"$report.metrics"
  loopback down >/dev/null
}
beside_simulation() { # words behind each case, options of the simulation...
  local words=$1
  shift
  play "$T/quiet.json" --concurrency 1
  play "$T/live.json" --speed 1
  "$bin/mc-replay" calibrate "$T/live.json" --quiet "$T/quiet.json" --time-scale $scale "$@" \
    --output json >"$T/calibration.json" || case $? in 5 | 6) ;; *) exit 1 ;; esac
  jq -c --arg words "$words" '.figures | to_entries[] | select(.value.live > 0) |
    {bench: "calibrate", case: (.key + (if .value.promised then " (promised)" else "" end) + $words),
     value: .value.simulated, unit: "", against: "the live run", against_value: .value.live,
     ratio: ([.value.simulated / .value.live, .value.live / ([.value.simulated, 1e-12] | max)] | min),
     n: 1, spread: 0}' "$T/calibration.json"
  echo "# live and simulated$words: $(jq -r .why "$T/calibration.json")"
}
cluster=(--prefill 1 --decode 1 --store 1)
beside_simulation ""
# 40 blocks a prefill worker, and no fetches from peers. The store's node has as much as the three
# simulated ones together.
cluster=(--prefill 2 --decode 1 --store 1 --policy load --segment 768MiB --with 'prefill:--blocks 40')
beside_simulation ", pool" --cache-tokens 20480 --pool-tokens 262144
came=$(sed -n 's/^mc_conductor_pool_tokens_total //p' "$T/live.json.metrics")
came=${came:-0}
echo "# live: $came tokens of prompts came from the pool"
[ "${came%.*}" != 0 ] || { echo "nothing came from the pool" >&2; exit 1; }
