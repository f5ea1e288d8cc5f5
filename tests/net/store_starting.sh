#!/usr/bin/env bash
# A node that is not open yet lives, says that it is not ready and why, and SIGTERM ends it.
. "$(dirname "$0")/../common.inc"
. "$(dirname "$0")/store.inc"

# Nobody listens there, so the node looks for its masters for half a minute.
http=127.0.0.1:$(free_port)
begin s "$MC_BIN/mc-store" serve --name s --listen 127.0.0.1:0 --http "$http" --size 4MiB \
  --master "etcd://127.0.0.1:$(free_port)"
answers() { [ "$(curl -s -m 5 -o "$T/page" -w '%{http_code}' "http://$http/$1")" = "$2" ]; }
until_true 10 "no answer while it starts" answers ready 503
jq -e '.ready == false and (.reason | startswith("starting: finds etcd://"))' "$T/page" >/dev/null ||
  die "no reason: $(cat "$T/page")"
answers live 200 || die "it does not live: $(cat "$T/page")"
answers metrics 200 || die "no metrics"
answers state 200 || die "no state"
jq -e '.mounted == false' "$T/page" >/dev/null || die "state: $(cat "$T/page")"
began=$SECONDS
stop s
[ $((SECONDS - began)) -lt $((10 * SLOW)) ] || die "it ended $((SECONDS - began)) s after SIGTERM"
