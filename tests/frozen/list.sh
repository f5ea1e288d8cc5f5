#!/usr/bin/env bash
# What is frozen is as tests/frozen/list.txt says, and whoever changes that says so in CHANGELOG.md.
. "$(dirname "$0")/../common.inc"
list=tests/frozen/list.txt
options=() there=$MC_SOURCE/$list
if [ -n "${MC_SANITIZE:-}" ]; then
  echo "not compared in this build (MC_SANITIZE=$MC_SANITIZE): what a running cluster says; release builds do"
  options=(--no-cluster)
  grep -vE '^(http|json|metric) ' "$MC_SOURCE/$list" >"$T/there"
  there=$T/there
fi
expect 0 "$MC_SOURCE/scripts/frozen" "${options[@]}" "$MC_BIN"
cp "$T/out" "$T/now"
if ! diff -U0 "$there" "$T/now" >"$T/diff"; then
  grep -E '^[-+][^-+]' "$T/diff" >&2 || true
  die "what other versions, operators and scripts rely on has changed: - was, + is now. Undo that; or, if
it is meant, run scripts/frozen --write $MC_BIN and say under **Wire**, **Metrics**, **Flags**,
**Files** or **C** in CHANGELOG.md what users must know (docs/hacking.md)"
fi

# What changes the list changes CHANGELOG.md: of the files here, or else of the last commit.
git() { command git -C "$MC_SOURCE" "$@" 2>/dev/null; }
if git diff --quiet HEAD -- "$list"; then range=(HEAD^ HEAD); else range=(HEAD); fi
if ! git rev-parse --verify -q "${range[0]}^{commit}" >/dev/null; then
  echo "not compared: CHANGELOG.md, as there is no git or no parent commit here"
elif git cat-file -e "${range[0]}:$list" && ! git diff --quiet "${range[@]}" -- "$list"; then
  grep -qE '^\+.*\*\*(Wire|Metrics|Flags|Files|C)\*\*' <<<"$(git diff -U0 "${range[@]}" -- CHANGELOG.md)" ||
    die "$list changes, and CHANGELOG.md does not say so: add a line with **Wire**, **Metrics**,
**Flags**, **Files** or **C**"
fi
echo "$(wc -l <"$there") facts are as they were"
