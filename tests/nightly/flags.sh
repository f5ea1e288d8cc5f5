#!/usr/bin/env bash
# Every flag of every program gets hostile values: tests/nightly/flags.py. Four minutes. MC_SECONDS: how long;
# MC_SEED: which values come first; arguments: only programs, verbs or flags of these names.
source "$(dirname "$0")/../common.inc"
timeout -k 10 3600 python3 "$MC_SOURCE/tests/nightly/flags.py" "$MC_BIN" "$T" "${MC_SECONDS:-240}" "${MC_SEED:-1}" "$@"
