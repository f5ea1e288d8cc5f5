#!/usr/bin/env bash
# Each script of tests/nightly says what it does with --help, and is skipped with a word about what is
# missing where it cannot run. Nothing of them runs here.
source "$(dirname "$0")/../common.inc"
# Of the machine's Python nothing but what comes with it.
mkdir "$T/python"
for package in ensurepip jsonschema torch transformers; do echo 'raise ImportError' >"$T/python/$package.py"; done
export PYTHONPATH=$T/python MC_ENGINES=$T/none MC_CLIENTS=$T/none MC_LOADS=$T/none MC_TEST_SHARED=$T/none
unset MC_TRANSFORMERS_PYTHON MC_TOKENIZERS_PYTHON
scripts=0 skipped=0
for script in "$MC_SOURCE"/tests/nightly/*.sh; do
  name=$(basename "$script" .sh)
  expect 0 bash "$script" --help
  head -c 40 "$T/out" | grep -q '[a-z]' || die "$name --help says nothing"
  scripts=$((scripts + 1))
  case $name in
    examples | flags | troubles | unfriendly) continue ;; # they want nothing but the programs
    setup) ! command -v debootstrap >/dev/null || continue ;;
  esac
  expect 77 bash "$script"
  tail -n 1 "$T/out" | grep -Eq '^skipped: .*(scripts/setup|apt-get|root|\bno model in)' ||
    die "$name does not say what it lacks, and what brings it: $(cat "$T/out")"
  skipped=$((skipped + 1))
done
echo "$scripts scripts, $skipped skipped with a word"
