#!/usr/bin/env bash
# Whole commands, timed by hyperfine: the start-up of each program, and two that do real work.
set -euo pipefail
command -v hyperfine >/dev/null || { echo "hyperfine is absent: scripts/setup --bench"; exit 77; }
root=$(cd "$(dirname "$0")/.." && pwd)
bin=${MC_BIN:-$root/build/release}
runs=15
[ "${1:-}" != --quick ] || runs=7
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT

"$bin/mc-replay" synth --profile sample --seed 1 --out "$T/trace.jsonl"
cases=("mc-topo show" "mc-replay analyze $T/trace.jsonl")
for program in master store prefill decode conductor xfer topo replay; do
  cases+=("mc-$program --version")
done
for case in "${cases[@]}"; do
  # The peer runs right before, so that both see the same machine.
  hyperfine -N -w 2 -r "$runs" --export-json "$T/out.json" --style none \
    /bin/true "$bin/$case" >/dev/null 2>"$T/err" || { cat "$T/err" >&2; exit 1; }
  jq -c --arg name "${case//$T\//}" '.results as [$t, $c] |
    {bench: "commands", case: $name, value: ($c.median * 1000), unit: "ms", against: "/bin/true",
     against_value: ($t.median * 1000), ratio: ($t.median / $c.median), n: ($c.times | length),
     spread: (($c.max - $c.min) / $c.median)}' "$T/out.json"
done
