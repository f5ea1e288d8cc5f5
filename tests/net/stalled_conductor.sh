#!/usr/bin/env bash
# F5: a conductor that stands still for eight seconds loses no stream: four that are open end with the
# text of an undisturbed run, workers stay registered, and requests that come meanwhile are answered.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/../daemons.inc"
launch conductor "$MC_BIN/mc-conductor" --listen 127.0.0.1:0 --http 127.0.0.1:0 --model tiny
control=$(address conductor)
url=http://$(jq -r .http "$T/conductor.json")
worker() { # ROLE NAME FLAGS...
  launch "$2" "$MC_BIN/mc-$1" --listen 127.0.0.1:0 --http 127.0.0.1:0 --name "$2" --model tiny \
    --conductor "$control" "${@:3}"
}
worker prefill p0
worker decode quick --time-scale 0
until_true 30 "the cluster is not ready" curl -fsS -m 10 "$url/ready"

stream() { # NUMBER FILE
  curl -fsS -N -m 120 -H 'content-type: application/json' "$url/v1/completions" -d '{"model":"tiny","prompt":"stream '"$1"'","seed":3,
    "ignore_eos":true,"max_tokens":200,"stream":true}' >"$2"
}
text() { grep -o '"text":"[^"]*"' "$1"; }
streams() { # NAME
  clients=()
  for n in 1 2 3 4; do
    stream "$n" "$T/$1.$n" &
    clients+=($!)
  done
}
all_began() { for n in 1 2 3 4; do [ "$(grep -c '^data: {' "$T/$1.$n")" -ge 5 ] || return 1; done; }

streams quiet
for client in "${clients[@]}"; do wait "$client" || die "an undisturbed stream failed"; done
stop quick
# From now on a stream lasts some seven seconds.
worker decode d0 --time-scale 16
worker decode d1 --time-scale 16
joined() { curl -fsS -m 10 "$url/cluster" | jq -e '[.. | .name? | select(. == "d0" or . == "d1")] | length == 2'; }
until_true 30 "the decode workers did not join" joined

streams held
until_true 30 "the streams did not begin" all_began held
kill -STOP "${PIDS[conductor]}"
stream 5 "$T/late" & # it comes while the conductor stands still
late=$!
fault_time 8000
kill -CONT "${PIDS[conductor]}"
for client in "${clients[@]}" "$late"; do wait "$client" || die "a stream failed: $(tail -n 2 "$T"/held.*)"; done
for n in 1 2 3 4; do
  tail -n 2 "$T/held.$n" | grep -q DONE || die "stream $n ended early: $(tail -n 2 "$T/held.$n")"
  cmp <(text "$T/quiet.$n") <(text "$T/held.$n") || die "stream $n has another text"
done
grep -q DONE "$T/late" || die "a request that came meanwhile: $(tail -n 2 "$T/late")"
! grep -E "worker (p0|d0|d1) is gone" "$T/conductor.log" || die "workers were taken for gone"
