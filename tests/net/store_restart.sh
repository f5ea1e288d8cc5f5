# kill -9 of the master loses nothing; kill -9 of a node loses what it held, with a clear reason.
. "$(dirname "$0")/../common.inc"
. "$(dirname "$0")/store.inc"

master_up
node_up a --size 32MiB
node_up b --size 32MiB
for i in $(seq 20); do
  blob $((i * 50000)) "$i" "$T/v$i"
  expect 0 store put "k$i" "$T/v$i"
done
expect 0 store put both "$T/v20" --replicas 2
until_true 5 "k7 cannot be removed" store rm k7

kill_9 master
expect 3 store get k1 --timeout 1s
grep -q 'is it running' "$T/err" || die "no remedy for a master that is gone: $(cat "$T/err")"
epoch=$(jq -r .epoch "$T/master.json" 2>/dev/null || echo 0)
master_up
[ "$(jq -r .epoch "$T/master.json")" -ge "$epoch" ] || die "the epoch went back"

whole() { store stat --output json | jq -e '(.nodes | length) == 2 and .objects == 20' >/dev/null; }
until_true 15 "the master is not whole again" whole
for i in $(seq 20); do
  [ "$i" != 7 ] || continue
  expect 0 store get "k$i" --out "$T/back" --verify always
  cmp "$T/v$i" "$T/back" || die "k$i differs after the master's restart"
done
expect 1 store exists k7
expect 0 store put after "$T/v3"
expect 0 store get after --out "$T/back" --verify always

# A node dies: its objects are unavailable at once and gone after client-ttl; copies are served.
kill_9 a
expect 0 store get both --out "$T/back" --verify always
cmp "$T/v20" "$T/back" || die "the other replica differs"
for i in $(seq 6); do expect 0 store put "fresh$i" "$T/v$i"; done  # placed on the node that lives
for i in $(seq 20); do
  [ "$i" != 7 ] || continue
  rc=0
  store get "k$i" --out "$T/back" --verify always --timeout 3s 2>"$T/err" >/dev/null || rc=$?
  case $rc in
    0) cmp "$T/v$i" "$T/back" || die "k$i differs after a node died" ;;
    1) grep -q 'not-found' "$T/err" || die "k$i: $(cat "$T/err")" ;;
    3) ;;
    *) die "get k$i exited $rc: $(cat "$T/err")" ;;
  esac
done
one_node() { store stat --output json | jq -e '(.nodes | length) == 1' >/dev/null; }
until_true 10 "the dead node was never given up" one_node
expect 0 store put again "$T/v5"

# It comes back under its name, empty, and is used again.
node_up a --size 32MiB
store stat --output json | jq -e '(.nodes | length) == 2' >/dev/null || die "the node did not rejoin"
expect 0 store put there "$T/v5" --prefer a
expect 0 store get there --out "$T/back" --verify always
cmp "$T/v5" "$T/back" || die "a value on the node that rejoined differs"
