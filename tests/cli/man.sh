#!/usr/bin/env bash
# The committed man pages are what the programs say today, and are well formed.
. "$(dirname "$0")/../common.inc"
expect 0 "$MC_SOURCE/scripts/gen-man" "$MC_BIN" "$T/man"
pages=0
for page in "$T"/man/*.1; do
  name=$(basename "$page")
  diff -u "$MC_SOURCE/man/$name" "$page" >&2 ||
    die "man/$name is out of date: run scripts/gen-man $MC_BIN and commit it"
  for section in NAME SYNOPSIS ENVIRONMENT FILES 'EXIT STATUS' EXAMPLES 'SEE ALSO'; do
    grep -qx ".SH $section" "$page" || die "$name has no section $section"
  done
  grep -qx .TP <<<"$(grep -A1 -x '.SH EXAMPLES' "$page")" || die "$name has no example"
  if command -v groff >/dev/null; then
    groff -man -Tutf8 -ww -z "$page" 2>"$T/err" || die "groff cannot read $name"
    [ ! -s "$T/err" ] || die "$name: $(head -1 "$T/err")"
  fi
  pages=$((pages + 1))
done
for page in "$MC_SOURCE"/man/*.1; do
  name=$(basename "$page" .1)
  [ -x "$MC_BIN/$name" ] || echo "not compared: $name is not built"
done
echo "$pages pages are up to date"
