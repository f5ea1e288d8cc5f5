#!/usr/bin/env bash
# What bench/run peers and bench/run gate decide, with sides and numbers that are made up; and that
# setting up peers that are there downloads nothing.
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
