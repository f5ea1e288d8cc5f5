#!/usr/bin/env bash
# The clients that people use, against mc-conductor with own workers and with an external engine of
# another model: tests/nightly/clients.py. Arguments are cases of it. A minute.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/../net/cluster.inc"
clients=${MC_CLIENTS:-$MC_SOURCE/build/clients}
[ -e "$clients/ready" ] || skip "no clients in $clients: scripts/setup --clients makes it"
cluster_up --prefill 1 --decode 1 --store 0
"$clients/bin/python" "$MC_SOURCE/tests/nightly/clients.py" "$URL" "$T/cluster/conductor.sock" "$@" ||
  die "see above"
