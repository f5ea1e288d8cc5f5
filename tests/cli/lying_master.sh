#!/usr/bin/env bash
# A master that lies costs its clients an error: no endless listing, no put without a place, no memory for bytes
# that never come, no commands to the terminal.
source "$(dirname "$0")/../common.inc"
expect 0 timeout 120 python3 "$MC_SOURCE/tests/cli/lying_master.py" "$MC_BIN/mc-store"
