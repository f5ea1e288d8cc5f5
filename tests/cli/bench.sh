#!/usr/bin/env bash
# What bench/run peers and bench/run gate decide, with sides and numbers that are made up; and that
# setting up peers that are there downloads nothing. Which benches lint reads.
source "$(dirname "$0")/../common.inc"
export PYTHONDONTWRITEBYTECODE=1
python3 "$MC_SOURCE/tests/cli/bench.py" || die "see above"

mkdir -p "$T/engines"/{mooncake,nixl,llama}
touch "$T/engines"/{mooncake,nixl,llama}/ready
expect 0 env MC_ENGINES="$T/engines" "$MC_SOURCE/scripts/setup" --peers
# Each run names the libraries that this machine lacks.
said=$(cat "$T/out" "$T/err" | grep -v 'is not there: apt-get install' || true)
[ -z "$said" ] || die "peers that are there are set up again: $said"
expect 2 env MC_ENGINES="$T/engines" "$MC_SOURCE/scripts/setup" --peers sparrow

# The benches that a change may break: those that include it, by other headers or not there any more.
if command -v git >/dev/null; then
  mkdir -p "$T/tree/scripts" "$T/tree/bench" "$T/tree/lib/x"
  cp "$MC_SOURCE/scripts/changed-benches" "$T/tree/scripts/"
  cd "$T/tree" || die "no folder"
  echo '#include "x/a.h"' >bench/one_bench.cc
  echo '#include "x/c.h"' >bench/two_bench.cc
  echo '#include "b.h"' >lib/x/a.h
  touch lib/x/b.h lib/x/c.h
  expect 0 git init -q
  expect 0 git add .
  expect 0 git -c user.name=t -c user.email=t@t commit -qm first
  expect 0 scripts/changed-benches HEAD
  [ ! -s "$T/out" ] || die "nothing changed: $(cat "$T/out")"
  echo '// more' >lib/x/b.h
  expect 0 scripts/changed-benches HEAD
  [ "$(cat "$T/out")" = bench/one_bench.cc ] || die "b.h changed: $(cat "$T/out")"
  rm lib/x/c.h
  expect 0 scripts/changed-benches HEAD
  [ "$(wc -l <"$T/out")" = 2 ] || die "c.h is gone: $(cat "$T/out")"
fi
