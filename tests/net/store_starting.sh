#!/usr/bin/env bash
# A node that is not open yet lives, says that it is not ready and why, and SIGTERM ends it: while it
# looks for its masters, and while it scans its disk.
. "$(dirname "$0")/../common.inc"
. "$(dirname "$0")/store.inc"

answers() { [ "$(curl -s -m 5 -o "$T/page" -w '%{http_code}' "http://$http/$1")" = "$2" ]; }
# lives REASON: the node, which is starting, answers; REASON is a test of what it says in jq.
lives() {
  until_true 10 "no answer while it starts" answers ready 503
  jq -e ".ready == false and (.reason | $1)" "$T/page" >/dev/null ||
    die "no reason: $(cat "$T/page")"
  answers live 200 || die "it does not live: $(cat "$T/page")"
  answers metrics 200 || die "no metrics"
  answers state 200 || die "no state"
  jq -e '.mounted == false' "$T/page" >/dev/null || die "state: $(cat "$T/page")"
}
ends() {
  local began=$SECONDS
  stop s
  [ $((SECONDS - began)) -lt $((10 * SLOW)) ] || die "it ended $((SECONDS - began)) s after SIGTERM"
}

# Nobody listens there, so the node looks for its masters for half a minute.
http=127.0.0.1:$(free_port)
begin s "$MC_BIN/mc-store" serve --name s --listen 127.0.0.1:0 --http "$http" --size 4MiB \
  --master "etcd://127.0.0.1:$(free_port)"
lives 'startswith("starting: finds etcd://")'
ends

# To open the folder's lock waits until this test gives up its lease on that file, or until the
# kernel ends the lease after 45 s. So the scan takes as long as the test wants.
master_up
disk=(--ssd "$T/ssd" --ssd-size 64MiB --ssd-staging 4MiB)
node_up s --size 4MiB "${disk[@]}"
stop s
begin lease python3 -c 'import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)  # someone waits
lock = os.open(sys.argv[1], os.O_RDWR)
try: fcntl.fcntl(lock, fcntl.F_SETLEASE, fcntl.F_WRLCK)
except OSError as e: sys.exit(print(e))
print("held", flush=True)
signal.pause()' "$T/ssd/LOCK"
until_true 30 "no word of the lease" test -s "$T/lease.log"
[ "$(cat "$T/lease.log")" = held ] || skip "no lease on a file of $T: $(cat "$T/lease.log")"
begin s "$MC_BIN/mc-store" serve --name s --listen 127.0.0.1:0 --http "$http" --size 4MiB \
  --master "$MASTER" "${disk[@]}"
lives 'contains("and scans ")'
ends
# And once more, to its end.
begin s "$MC_BIN/mc-store" serve --name s --listen 127.0.0.1:0 --http "$http" --size 4MiB \
  --master "$MASTER" "${disk[@]}"
lives 'contains("and scans ")'
kill_9 lease
until_true 30 "not ready when its disk was read" answers ready 200
stop s
