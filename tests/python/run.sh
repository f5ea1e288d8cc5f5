#!/usr/bin/env bash
# run.sh FILE...: the tests of these files of tests/python, by a Python that has pytest, over the
# library and the programs of $MC_BIN.
source "$(dirname "$0")/../common.inc"
[ -z "${MC_SANITIZE:-}" ] || skip "a sanitizer's library needs its runtime preloaded: the release build runs this"
for python in ${MC_PYTHON:-python3} /usr/bin/python3 none; do
  [ $python != none ] || skip "no pytest: scripts/setup installs python3-pytest"
  ! $python -c 'import pytest' 2>/dev/null || break
done
cd "$MC_SOURCE/tests/python" || exit 1
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONPATH=$MC_SOURCE/lib/python MC_LIBRARY=$MC_BIN/libmc.so MC_BIN MC_SOURCE PYTHONDONTWRITEBYTECODE=1
TMPDIR=$T $python -m pytest -q -p no:cacheprovider --basetemp "$T/pytest" "$@" || die "pytest: exit $?"
