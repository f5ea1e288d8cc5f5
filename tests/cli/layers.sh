#!/usr/bin/env bash
# The committed tables of folders are what lib/layers.txt says today.
. "$(dirname "$0")/../common.inc"
expect 0 "$MC_SOURCE/scripts/gen-layers" "$T"
for page in docs/architecture.md lib/README.md; do
  diff -u "$MC_SOURCE/$page" "$T/$page" >&2 ||
    die "$page is out of date: run scripts/gen-layers and commit it"
done
