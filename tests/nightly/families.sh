#!/usr/bin/env bash
# Logits of every family, small and of random weights, as transformers computes them: within single
# precision of ours. Wants the packages torch and transformers, in the Python of MC_TRANSFORMERS_PYTHON or
# of an environment that `scripts/setup --engines` makes.
source "$(dirname "$0")/../common.inc"
python=${MC_TRANSFORMERS_PYTHON:-}
for candidate in "${MC_ENGINES:-$MC_SOURCE/build/engines}"/*/bin/python; do
  [ -z "$python" ] || break
  if "$candidate" -c 'import torch, transformers' 2>/dev/null; then python=$candidate; fi
done
[ -n "$python" ] || skip "no Python with torch and transformers: scripts/setup --engines, or set MC_TRANSFORMERS_PYTHON"
"$python" "$MC_SOURCE/tests/nightly/families.py" "$T/families" 2>"$T/err" || die "families.py: $(tail -n 5 "$T/err")"
MC_FAMILIES=$T/families "$MC_BIN/unit_model" -tc="each family's logits are those of transformers" ||
  die "logits differ"
