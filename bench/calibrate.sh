#!/usr/bin/env bash
# A live loopback run against its own simulation: each part of the time to the first token, the time
# between tokens and the hit ratio. What this machine adds is read off a quiet run before.
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
play() { # report, options...
  local report=$1
  shift
  loopback up --prefill 1 --decode 1 --store 1 --block-size 512 --time-scale $scale >/dev/null
  "$bin/mc-replay" run "$T/trace.jsonl" --url "$(loopback url)" --report "$report" --max-lag 5s \
    "$@" >/dev/null
  loopback down >/dev/null
}
play "$T/quiet.json" --concurrency 1
play "$T/live.json" --speed 1
"$bin/mc-replay" calibrate "$T/live.json" --quiet "$T/quiet.json" --time-scale $scale \
  --output json >"$T/calibration.json" || case $? in 5 | 6) ;; *) exit 1 ;; esac
jq -c '.figures | to_entries[] | select(.value.live > 0) |
  {bench: "calibrate", case: (.key + (if .value.promised then " (promised)" else "" end)),
   value: .value.simulated, unit: "", against: "the live run", against_value: .value.live,
   ratio: ([.value.simulated / .value.live, .value.live / ([.value.simulated, 1e-12] | max)] | min),
   n: 1, spread: 0}' "$T/calibration.json"
