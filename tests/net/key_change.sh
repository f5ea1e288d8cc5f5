#!/usr/bin/env bash
# The cluster's key is replaced through its four files while clients put and get without a pause: no
# call fails, and who has only the old key is out then.
. "$(dirname "$0")/../common.inc"
. "$(dirname "$0")/store.inc"

secret() { head -c 24 /dev/urandom | base64 -w 0; }
secret >"$T/old"
secret >"$T/new"
chmod 600 "$T/old" "$T/new"
# key_file NAME FILE...: the secrets of these files, a line each, at once
key_file() {
  local to=$1
  shift
  (umask 077 && for file; do cat "$file" && echo; done >"$T/$to.fresh")
  mv "$T/$to.fresh" "$T/$to"
}
# key_files FILE...: those of the master, of each node and of the clients, one after the other
key_files() {
  local to
  for to in master.key a.key b.key client.key; do key_file $to "$@"; done
}
# known: each process has read its file again since seen
declare -A SEEN=([master]=0 [a]=0 [b]=0 [loop]=0)
known() {
  local name n
  for name in "${!SEEN[@]}"; do
    n=$(grep -c 'was read again' "$T/$name.log" || true)
    [ "$n" -gt "${SEEN[$name]}" ] || return 1
  done
}
seen() { for name in "${!SEEN[@]}"; do SEEN[$name]=$(grep -c 'was read again' "$T/$name.log" || true); done; }
# moved: no daemon has connections by its second key
moved() {
  local name n
  for name in master a b; do
    n=$(curl -fsS -m 5 "http://$(jq -r .http "$T/$name.json")/metrics" |
      sed -n 's/^mc_rpc_second_key_connections //p')
    [ "$n" = 0 ] || return 1
  done
}

key_files "$T/old"
master_up --cluster-key "$T/master.key"
for node in a b; do node_up $node --size 64MiB --cluster-key "$T/$node.key"; done
until_true 30 "the nodes are not mounted" sh -c \
  "'$MC_BIN/mc-store' stat --master '$MASTER' --cluster-key '$T/old' --output json | jq -e '.nodes | length == 2'"

# One process that calls all the time, and new processes one after the other.
[ -z "${MC_SANITIZE:-}" ] || skip "a sanitizer's libmc.so needs its runtime preloaded: the release build runs this"
PYTHONPATH=$MC_SOURCE/lib/python MC_LIBRARY=$MC_BIN/libmc.so python3 - "$MASTER" "$T" >"$T/loop.log" 2>&1 <<'P' &
import os, sys
import mc
master, folder = sys.argv[1:]
with mc.Store(master, cluster_key=f'{folder}/client.key', log_level='info') as store:
    n = 0
    while not os.path.exists(f'{folder}/enough'):
        value = str(n).encode() * 1000
        store.put(f'loop/{n}', value)
        if bytes(store.get(f'loop/{n}')) != value:
            sys.exit(f'value {n} differs')
        store.remove(f'loop/{n}', force=True)
        n += 1
        with open(f'{folder}/loops', 'w') as f:
            f.write(str(n))
print(f'{n} turns')
P
loop=$!
blob 100000 1 "$T/value"
once() {
  store put "once/$1" "$T/value" --cluster-key "$T/client.key" --timeout "$(ms 10000)" >/dev/null &&
    store get "once/$1" --cluster-key "$T/client.key" --timeout "$(ms 10000)" --out "$T/back" >/dev/null &&
    cmp -s "$T/value" "$T/back"
}
(
  n=0
  until [ -e "$T/enough" ]; do
    once $n || { echo "client $n failed"; exit 1; }
    n=$((n + 1))
    echo $n >"$T/clients"
  done
) >"$T/once.txt" 2>&1 &
once=$!
# load: both went on by a few turns since the last step, and live
turns() {
  local n
  n=$(cat "$T/$1" 2>/dev/null || true)
  echo "${n:-0}"
}
load() {
  kill -0 $loop 2>/dev/null || { cat "$T/loop.log" >&2; die "the loop ended: $1"; }
  kill -0 $once 2>/dev/null || { cat "$T/once.txt" >&2; die "a client failed: $1"; }
  [ "$(turns loops)" -ge $((LOOPS + 5)) ] && [ "$(turns clients)" -ge $((CLIENTS + 2)) ]
}
begun() { [ "$(turns loops)" -gt 0 ] && [ "$(turns clients)" -gt 0 ]; }
until_true 60 "no load" begun
step() { # WHAT FILE...
  local what=$1
  shift
  key_files "$@"
  until_true 30 "$what: not read" known
  seen
  until_true 60 "$what: connections by the second key are left" moved
  LOOPS=$(turns loops) CLIENTS=$(turns clients)
  local deadline=$((SECONDS + 60 * SLOW))
  until load "$what"; do
    [ $SECONDS -lt $deadline ] || die "$what: the load stands still"
    pause_briefly
  done
}
step "both" "$T/old" "$T/new"
expect 0 store stat --cluster-key "$T/old" --timeout "$(ms 10000)"
step "new first" "$T/new" "$T/old"
expect 0 store stat --cluster-key "$T/new" --timeout "$(ms 10000)"
step "new alone" "$T/new"
touch "$T/enough"
wait $loop || die "the loop failed: $(cat "$T/loop.log")"
wait $once || die "a client failed: $(cat "$T/once.txt")"

expect 0 store stat --cluster-key "$T/new" --timeout "$(ms 10000)"
expect 3 store stat --cluster-key "$T/old" --timeout "$(ms 1000)"
grep -q 'with the same cluster key' "$T/err" || die "no reason for the old key: $(cat "$T/err")"

# A file that is of no use changes nothing, and is named.
chmod 644 "$T/master.key"
until_true 30 "no word about the file" grep -q 'chmod 600 it: the keys stay' "$T/master.log"
expect 0 store stat --cluster-key "$T/new" --timeout "$(ms 10000)"
! grep -qF -e "$(cat "$T/old")" -e "$(cat "$T/new")" "$T"/*.log || die "a log has a key"
