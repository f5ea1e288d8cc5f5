#!/usr/bin/env bash
# What both halves of a pair get of mc-conductor is what SGLang's own routers send: tests/nightly/pairs.py.
# Half a minute.
source "$(dirname "$0")/../common.inc"
export PYTHONDONTWRITEBYTECODE=1
clients=${MC_CLIENTS:-$MC_SOURCE/build/clients}
[ -e "$clients/ready" ] || skip "no clients in $clients: scripts/setup --clients makes it"
"$clients/bin/python" -c 'import sglang_router' 2>"$T/err" ||
  skip "$clients has no sglang-router: remove the folder, and scripts/setup --clients makes it anew"
"$clients/bin/python" "$MC_SOURCE/tests/nightly/pairs.py" "$MC_BIN/mc-conductor" "$T" || die "see above"
