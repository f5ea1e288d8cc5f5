#!/usr/bin/env bash
# Constrained values of 200 random JSON schemas, drawn by a test of unit_model, checked by the jsonschema
# package (python3-jsonschema).
source "$(dirname "$0")/../common.inc"
/usr/bin/python3 -c 'import jsonschema' 2>/dev/null || skip "no python3-jsonschema: scripts/setup"
MC_SCHEMA_VALUES=$T/values "$MC_BIN/unit_model" -tc='200 random schemas: random logits*' >"$T/log" 2>&1 ||
  { cat "$T/log" >&2; die "see above"; }
/usr/bin/python3 "$MC_SOURCE/tests/nightly/schemas.py" "$T/values"
