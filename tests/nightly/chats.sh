#!/usr/bin/env bash
# What the conductor takes messages and responses for, when it asks an engine for their tokens, against what
# vLLM itself makes of them: tests/nightly/chats.py. Half a minute. -P: this folder has a vllm.py, which is
# not the package. Another version may do it another way: then its lines are shown.
source "$(dirname "$0")/../common.inc"
engines=${MC_ENGINES:-$MC_SOURCE/build/engines}
python=$engines/vllm-0.32.0/bin/python
[ -x "$python" ] || skip "no vLLM 0.32.0 in $engines: scripts/setup --engines makes it"
"$python" -P "$MC_SOURCE/tests/nightly/chats.py" "$MC_SOURCE/tests/unit/serve/engine_chats.json" 2>"$T/err" ||
  die "see above$(tail -3 "$T/err")"
