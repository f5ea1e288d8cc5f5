#!/usr/bin/env bash
# Every file in configs/ is loaded by its program; the full ones list every option as it is today.
. "$(dirname "$0")/../common.inc"

expect 0 "$MC_SOURCE/scripts/gen-configs" "$MC_BIN" "$T/configs"
for file in "$T"/configs/*.json; do
  name=$(basename "$file")
  diff -u "$MC_SOURCE/configs/$name" "$file" >&2 ||
    die "configs/$name is out of date: run scripts/gen-configs $MC_BIN and commit it"
done

verbs() { "$1" --help-man | sed -n 's/^\.SS "\([^:]*\): .*/\1/p' | sed 's/\\-/-/g'; }
loaded=0
for file in "$MC_SOURCE"/configs/mc-*.json "$MC_SOURCE"/configs/*/mc-*.json; do
  name=$(basename "$file" .json)
  program=$MC_BIN/$name
  [ -x "$program" ] || { echo "not loaded: $name is not built"; continue; }
  mapfile -t all < <(verbs "$program")
  for verb in "${all[@]:-}"; do
    # shellcheck disable=SC2086  # a program without verbs has none to name
    expect 0 "$program" $verb --config "$file" --print-config
  done
  sed '0,/{/s//{ "no-such-option": 1,/' "$file" >"$T/bad.json"
  # shellcheck disable=SC2086
  expect 2 "$program" $verb --config "$T/bad.json" --print-config
  grep -q no-such-option "$T/err" || die "$name does not name the unknown key: $(cat "$T/err")"
  loaded=$((loaded + 1))
done
[ "$loaded" -gt 0 ] || skip "no program is built in $MC_BIN"

# Units start programs that exist, with files that exist.
for unit in "$MC_SOURCE"/configs/systemd/*.service; do
  name=$(basename "$unit" .service)
  name=${name%@}
  grep -q '^Restart=on-failure$' "$unit" || die "$unit does not restart on failure"
  grep -q "^ExecStart=/usr/local/bin/$name " "$unit" || die "$unit does not start $name"
  [ ! -x "$MC_BIN/$name" ] || [ -e "$MC_SOURCE/configs/production/$name.json" ] ||
    die "no configs/production/$name.json for $unit"
done
echo "$loaded files load"
