#!/usr/bin/env bash
# Decode workers that stand still (SIGSTOP) in the middle of streams (F104): while another one runs it goes on with
# them; without one each stream ends once the worker counts as gone, with an error that names it. The workers serve
# again afterwards, and nothing is left of what they had.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"
cluster_up --prefill 1 --decode 2 --store 0 --time-scale 2 --with "conductor:--worker-ttl $(ms 2000)"

ask() { # NAME
  curl -sS -N -m 60 -D "$T/$1.head" --json '{"model":"tiny","prompt":"a long story '"$1"'","ignore_eos":true,"stream":true,
    "max_tokens":1500}' "$URL/v1/completions" >"$T/$1"
}
begun() { for name in "${names[@]}"; do [ "$(grep -c '^data: {' "$T/$name")" -ge 5 ] || return 1; done; }
streams() { # NAME...: begins them
  names=("$@") running=()
  for name in "${names[@]}"; do : >"$T/$name"; ask "$name" & running+=($!); done
  until_true 30 "the streams do not begin" begun
}
pids() { for name in "$@"; do cat "$T/cluster/$name.pid"; done; }
# shellcheck disable=SC2046  # several pids
signal() { kill "-$1" $(pids "${@:2}"); }
under_way() { ! grep -l '^data: \[DONE\]' "${names[@]/#/$T/}" || die "streams ended before their worker stood still"; }
ready() { [ "$(curl -fsS "$URL/cluster" | jq '[.nodes[] | select(.role == "decode")] | length')" = 2 ]; }

streams one two three four
victim=$(tr -d '\r' <"$T/one.head" | awk 'tolower($1) == "x-mc-decode:" { print $2 }')
signal STOP "$victim"
under_way
wait "${running[@]}" || die "a stream was cut"
for name in "${names[@]}"; do
  grep -q '^data: \[DONE\]' "$T/$name" || die "$victim stands still, and a stream did not go on: $(tail -n 3 "$T/$name")"
done
signal CONT "$victim"
until_true 30 "$victim does not come back" ready
rest_within 30 "$victim stood still"

streams five six seven eight
stopped=$SECONDS
signal STOP d0 d1
under_way
for i in "${!running[@]}"; do wait "${running[i]}" || die "stream ${names[i]} had no end within 60 s: $(tail -n 3 "$T/${names[i]}")"; done
took=$((SECONDS - stopped))
for name in "${names[@]}"; do
  grep -q '"code":"worker_failed"' "$T/$name" || die "another end than worker_failed: $(tail -n 3 "$T/$name")"
  grep -Eq 'decode on d[01]: the worker is gone: no heartbeat for [0-9]+s' "$T/$name" || die "no cause: $(tail -n 3 "$T/$name")"
done
[ $took -le $((20 * SLOW)) ] || die "the streams ended $took s after their workers stood still"
signal CONT d0 d1
until_true 30 "the workers do not come back" ready
served() { curl -fsS -m 10 --json '{"model":"tiny","prompt":"again","max_tokens":2}' "$URL/v1/completions"; }
until_true 30 "nothing is served" served
rest_within 30 "both stood still"
echo "ended after $took s"
