#!/usr/bin/env bash
# Ten thousand clients hold a stream on which nothing comes: the conductor stays within 1 GiB, cuts
# none of them, answers others meanwhile, and forgets them all when they leave. MC_STREAMS: others.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/../daemons.inc"
n=${MC_STREAMS:-10000}
[ -z "${MC_SANITIZE:-}" ] || n=500 # whose memory is not the program's own
[ "$(ulimit -Hn)" = unlimited ] || [ "$(ulimit -Hn)" -ge $((n + 1000)) ] ||
  skip "this machine allows $(ulimit -Hn) open files, and $n streams want more"
# Started with fewer files than it needs: it raises its own limit.
ulimit -Sn 1024
launch conductor "$MC_BIN/mc-conductor" --listen 127.0.0.1:0 --http 127.0.0.1:0 \
  --http-connections $((n + 100)) --token-timeout 600s --admission none --model tiny --log-level warn
control=$(address conductor)
http=$(jq -r .http "$T/conductor.json")
pid=${PIDS[conductor]}
"$MC_BIN/streams" workers "$control" "$T/workers" >"$T/workers.log" 2>&1 &
PIDS["workers"]=$!
until_true 30 "the workers did not join" test -s "$T/workers"
resident() { awk '/^VmRSS/ { print $2 }' "/proc/$pid/status"; } # KiB
before=$(resident)

mkfifo "$T/hold"
"$MC_BIN/streams" clients "$http" "$n" "$T/open" <"$T/hold" >"$T/clients.log" 2>&1 &
PIDS["clients"]=$!
exec 5>"$T/hold"
until_true 200 "the streams did not open: $(tail -2 "$T/clients.log")" test -s "$T/open"
after=$(resident)
echo "$n idle streams: $after KiB resident, $before before: $(((after - before) * 1024 / n)) bytes each"
[ "$after" -le $((1024 * 1024)) ] || die "$n idle streams take $after KiB"
[ "$(curl -fsS -m 10 "http://$http/cluster" | jq .in_flight)" = "$n" ] ||
  die "not all are in flight: $(curl -fsS -m 10 "http://$http/cluster")"
curl -sS -N -m 10 "http://$http/v1/completions" -o "$T/more" \
  --json '{"model":"tiny","prompt":"one more","stream":true}' -m 2 || true
grep -q '^data: {' "$T/more" || die "another client gets nothing: $(cat "$T/more")"

exec 5>&-
wait "${PIDS["clients"]}" || die "streams were cut: $(cat "$T/clients.log")"
left() { [ "$(curl -fsS -m 10 "http://$http/cluster" | jq .in_flight)" = 0 ]; }
until_true 60 "requests of clients that left are still in flight" left
curl -fsS -m 10 "http://$http/metrics" >"$T/metrics"
grep -q "requests_total{code=\"499\",reason=\"client_gone\"} $((n + 1))\$" "$T/metrics" ||
  die "not all were counted as 499: $(grep requests_total "$T/metrics")"
