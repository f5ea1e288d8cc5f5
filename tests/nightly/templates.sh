#!/usr/bin/env bash
# Chat templates of published models, rendered by the jinja2 package and by ours: no difference. Templates
# come from the sources of llama-cpp-python (not installed, only read) and the packages in build/engines.
# Wants pip and its index. $1: 1 is quick.
source "$(dirname "$0")/../common.inc"
rounds=200
[ "${1:-0}" = 0 ] || rounds=5
/usr/bin/python3 -c 'import ensurepip' 2>/dev/null || skip "no python3-venv: scripts/setup --python"
/usr/bin/python3 -m venv "$T/venv"
python=$T/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install jinja2==3.1.6 >"$T/pip.log" 2>&1 ||
  skip "no jinja2 by pip: $(tail -n 1 "$T/pip.log")"
mkdir "$T/templates"
if "$python" -m pip -q --disable-pip-version-check download --no-deps --no-binary :all: --no-build-isolation \
  -d "$T" llama-cpp-python >"$T/pip.log" 2>&1 || ls "$T"/llama_cpp_python-*.tar.gz >"$T/ls.log" 2>&1; then
  tar -xzf "$T"/llama_cpp_python-*.tar.gz -C "$T/templates" --wildcards '*/models/templates/*.jinja'
else
  echo "no llama-cpp-python by pip: $(tail -n 1 "$T/pip.log")"
fi
folders=("$T/templates")
[ ! -d "$MC_SOURCE/build/engines" ] || folders+=("$MC_SOURCE/build/engines")
"$python" "$MC_SOURCE/tests/nightly/templates.py" "$MC_BIN/template-render" "${folders[@]}" --rounds "$rounds"
