#!/usr/bin/env bash
# F22: the largest lie of each control message takes less than 32 MiB when it is decoded.
. "$(dirname "$0")/../common.inc"
expect 0 "$MC_BIN/frozen-lies"
