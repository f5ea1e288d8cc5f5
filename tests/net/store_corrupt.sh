#!/usr/bin/env bash
# A byte of a value is flipped in a node's memory (F3): readers with the defaults get the bytes that were
# put or an error, the replica is dropped and repaired, and mc-store why says why.
. "$(dirname "$0")/../common.inc"
. "$(dirname "$0")/store.inc"

master_up
node_up a --segment "16MiB@file:$T/a.seg"
node_up b --segment "16MiB@file:$T/b.seg"

# flip FILE NODE: one byte of that value in the node's memory
flip() {
  python3 - "$1" "$T/$2.seg" <<'PY'
import mmap, sys
value = open(sys.argv[1], 'rb').read()
with open(sys.argv[2], 'r+b') as f, mmap.mmap(f.fileno(), 0) as m:
    at = m.find(value)
    if at < 0: sys.exit('the value is not there')
    m[at + len(value) // 2] ^= 1
PY
}
# readers KEY FILE: sixteen processes get it; prints how many got it, dies if one got other bytes.
readers() {
  local pids=() right=0
  for n in $(seq 16); do
    "$MC_BIN/mc-store" get "$1" --out "$T/got$n" --master "$MASTER" --timeout "$(ms 5000)" \
      >/dev/null 2>&1 </dev/null &
    pids+=($!)
  done
  for n in $(seq 16); do
    wait "${pids[n - 1]}" || continue
    cmp -s "$T/got$n" "$2" || die "a reader of $1 got other bytes"
    right=$((right + 1))
  done
  echo $right
}
: >"$T/why"
why() { store why "$1" >"$T/why" 2>&1; }
says() { why "$1" || true; grep -q "$2" "$T/why"; }
replicas() { store ls "$1" --output json | jq -e ".replicas == $2"; }

blob 300001 1 "$T/two"
blob 300001 2 "$T/one"
store put two "$T/two" --replicas 2 --prefer a >/dev/null
store put one "$T/one" --prefer a >/dev/null

# One of two replicas: every reader gets the value, and there are two good ones again.
flip "$T/two" a
[ "$(readers two "$T/two")" = 16 ] || die "a replica was whole, and not every reader got the value"
until_true 10 "why does not say that a replica was corrupt: $(cat "$T/why")" \
  says two 'corrupt: node a has other bytes than were put'
until_true 10 "the value has not two replicas again" replicas two 2
[ "$(readers two "$T/two")" = 16 ] || die "it was repaired, and not every reader got the value"

# The only replica: an error, and then it is gone.
flip "$T/one" a
[ "$(readers one "$T/one")" = 0 ] || die "readers got a value that is nowhere"
until_true 10 "why does not say that the value was corrupt: $(cat "$T/why")" \
  says one 'corrupt: node a has other bytes than were put'
grep -q 'not stored' "$T/why" || die "$(cat "$T/why")"
