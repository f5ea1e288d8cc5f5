#!/usr/bin/env bash
# What --otlp sends is an ExportTraceServiceRequest to the published package: tests/net/otlp.sh runs, every
# body that its collector got is parsed, and the spans of all roles are one tree below that test's client span. Wants
# pip and its index.
source "$(dirname "$0")/../common.inc"
/usr/bin/python3 -c 'import ensurepip' 2>/dev/null || skip "no python3-venv: scripts/setup --python"
/usr/bin/python3 -m venv "$T/venv"
"$T/venv/bin/python" -m pip -q --disable-pip-version-check install opentelemetry-proto==1.45.2 >"$T/pip.log" 2>&1 ||
  skip "no opentelemetry-proto by pip: $(tail -n 1 "$T/pip.log")"
MC_TEST_BODIES=$T/bodies bash "$MC_SOURCE/tests/net/otlp.sh"
"$T/venv/bin/python" "$MC_SOURCE/tests/nightly/otlp.py" "$T/bodies" b7ad6b7169203331
