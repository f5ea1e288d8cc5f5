#!/usr/bin/env bash
# Seeded calls over Mooncake's real package and over mc.compat.mooncake: answers and bytes are equal but
# for tests/nightly/mooncake/differences*.txt. Every line of those is seen with seed 1; another seed, of
# the day, looks for what nobody has thought of. Arguments are seeds instead of that. Three minutes,
# five with vLLM.
source "$(dirname "$0")/../common.inc"
real=${MC_ENGINES:-$MC_SOURCE/build/engines}/mooncake
[ -e "$real/ready" ] || skip "no mooncake package in $real: scripts/setup --peers makes it"
export MC_BIN MC_LIBRARY=$MC_BIN/libmc.so PYTHONDONTWRITEBYTECODE=1
differ() { python3 "$MC_SOURCE/tests/nightly/mooncake/differential.py" --real "$real" "$@"; }
bad=0
if [ $# -gt 0 ]; then
  for seed in "$@"; do differ --seed "$seed" && differ --engine --seed "$seed" || bad=1; done
else
  for which in "" --engine; do
    # shellcheck disable=SC2086  # none or one word
    differ $which --no-unused --seed 1 || bad=1
    # shellcheck disable=SC2086
    differ $which --seed "$(date +%Y%m%d)" || bad=1
  done
fi
# Programs of the wheel that nobody here wrote: the same answers over both.
python3 "$MC_SOURCE/tests/nightly/mooncake/programs.py" --real "$real" || bad=1
if [ -e "$real/../vllm-0.32.0/ready" ] && [ -e "$real/../smollm2-135m/ready" ]; then
  MC_ENGINES=$real/.. python3 "$MC_SOURCE/tests/nightly/mooncake/vllm_store.py" || bad=1
else
  echo "no vLLM 0.32.0 in $real/..: scripts/setup --engines makes it, for vLLM's own Mooncake connector"
fi
[ $bad = 0 ] || die "other answers than Mooncake's: see above"
