#!/usr/bin/env bash
# What mc-conductor says to a concurrent pair is what the classes of vLLM's MooncakeConnector want that run
# without an accelerator: tests/nightly/mooncake_pairs.py. A minute.
source "$(dirname "$0")/../common.inc"
export PYTHONDONTWRITEBYTECODE=1
engines=${MC_ENGINES:-$MC_SOURCE/build/engines}
python=$engines/vllm-0.32.0/bin/python
[ -x "$python" ] || skip "no vLLM 0.32.0 in $engines: scripts/setup --engines makes it"
"$python" -P "$MC_SOURCE/tests/nightly/mooncake_pairs.py" "$MC_BIN/mc-conductor" "$T" 2>"$T/err" ||
  die "see above: $(tail -n 20 "$T/err")"
