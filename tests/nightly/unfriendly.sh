#!/usr/bin/env bash
# Clients and engines that break HTTP and the API in every way, against a conductor: each is answered or let
# go, none crashes or hangs it, and after a thousand of them it is as large as before with as many open
# files: tests/nightly/unfriendly.py. Two minutes. MC_GOES: how many, after one of each.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/../net/cluster.inc"
cluster_up --prefill 1 --decode 1 --store 0 --with 'conductor:--http-connections 256'
pid=$(loopback status | awk '$1 == "conductor" { print $3 }')
[ -n "$pid" ] || die "no conductor"
timeout 900 python3 "$MC_SOURCE/tests/nightly/unfriendly.py" "${URL#http://}" "$T/cluster/conductor.sock" "$pid" \
  "${MC_GOES:-1000}" ${MC_SHOW:+show} || die "see above; $(tail -n 5 "$T"/cluster/conductor.log)"
! grep -aE 'AddressSanitizer|runtime error:' "$T"/cluster/*.log || die "see above"
