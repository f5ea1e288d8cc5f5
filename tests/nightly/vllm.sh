#!/usr/bin/env bash
# The connector in the real vLLM, each supported version: tests/nightly/vllm.py, which says what it
# wants. Arguments are cases of it. About 15 minutes a version.
source "$(dirname "$0")/../common.inc"
engines=${MC_ENGINES:-$MC_SOURCE/build/engines}
[ -e "$engines/smollm2-135m/ready" ] || skip "no vLLM in $engines: scripts/setup --engines makes it"
export MC_BIN MC_ENGINES=$engines
bad=0 ran=0
for version in 0.32.0 0.29.0; do
  [ -e "$engines/vllm-$version/ready" ] || { echo "no vLLM $version: scripts/setup --engines"; continue; }
  status=0
  python3 "$MC_SOURCE/tests/nightly/vllm.py" --version "$version" "$@" || status=$?
  [ $status != 77 ] || exit 77
  ran=1
  [ $status = 0 ] || bad=1
done
[ $bad = 0 ] || die "see above"
[ $ran = 1 ] || skip "no vLLM 0.32.0 or 0.29.0 in $engines: scripts/setup --engines makes them"
