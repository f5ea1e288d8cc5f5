#!/usr/bin/env bash
# Three masters; etcd says which of them leads: the leader is killed, stopped past its lease and ended
# under load. No client sees an error, none waits longer than an election; what was stored is there.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/store.inc"
command -v etcd >/dev/null || skip "no etcd: scripts/setup installs it"
TTL=$((2 * SLOW))

etcd_up() {
  for _ in 1 2 3 4 5; do
    ETCD=127.0.0.1:$(free_port)
    peer=http://127.0.0.1:$(free_port)
    etcd --data-dir "$T/etcd" --listen-client-urls "http://$ETCD" --advertise-client-urls \
      "http://$ETCD" --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \
      --initial-cluster "default=$peer" --unsafe-no-fsync --log-level error \
      >>"$T/etcd.log" 2>&1 </dev/null &
    PIDS["etcd"]=$!
    local deadline=$((SECONDS + 30))
    while [ $SECONDS -lt $deadline ]; do
      ! grep -q true <<<"$(curl -fsS -m 5 "http://$ETCD/health" 2>/dev/null)" || return 0
      kill -0 "${PIDS[etcd]}" 2>/dev/null || break
      pause_briefly
    done
    kill -9 "${PIDS[etcd]}" 2>/dev/null || true
    rm -rf "$T/etcd"
  done
  skip "etcd does not start here: $(tail -n 3 "$T/etcd.log")"
}
declare -A AT=()
one_master() {  # again: where it was
  launch "$1" "$MC_BIN/mc-master" --listen "${AT[$1]:-127.0.0.1:0}" --http 127.0.0.1:0 "${PERIODS[@]}" \
    --ha "etcd://$ETCD/test" --leader-ttl ${TTL}s
  AT[$1]=$(address "$1")
}
epoch_of() { curl -fsS -m 2 "http://$(jq -r .http "$T/$1.json")/state" | jq -r '.epoch // 0'; }
leads() { [ "$(epoch_of "$1" 2>/dev/null || echo 0)" -gt 0 ]; }
leader() {
  for m in "${MASTERS[@]}"; do
    ! leads "$m" || { echo "$m"; return; }
  done
  return 1
}
leads_not() { # OLD EPOCH: another leads, of a later epoch
  new=$(leader) && [ "$new" != "$1" ] && taken=$(epoch_of "$new") && [ "$taken" -gt "$2" ]
}
some_leads() { old=$(leader); }
now_ms() { date +%s%3N; }

etcd_up
MASTERS=(m1 m2 m3)
for m in "${MASTERS[@]}"; do one_master "$m"; done
until_true 30 "nobody leads" leader
LIST=$(address m1),$(address m2),$(address m3)
MASTER=$LIST
node_up a --size 32MiB
export MASTER=etcd://$ETCD/test
node_up b --size 32MiB
for i in $(seq 20); do
  blob $((i * 30000)) "$i" "$T/v$i"
  expect 0 store put "stay$i" "$T/v$i" --pin hard
done
# Any of them will do, and so will etcd.
for m in "${MASTERS[@]}"; do expect 0 "$MC_BIN/mc-store" exists stay1 --master "$(address "$m")"; done
expect 0 "$MC_BIN/mc-store" exists stay1 --master "etcd://$ETCD/test"
expect 3 "$MC_BIN/mc-store" exists stay1 --master "etcd://$ETCD/nobody" --timeout 500ms
grep -q 'no master is there' "$T/err" || die "no remedy where there is no master: $(cat "$T/err")"

all_there() {
  for i in $(seq 20); do
    expect 0 store get "stay$i" --out "$T/back" --verify always
    cmp "$T/v$i" "$T/back" || die "stay$i differs $1"
  done
}
# The load of one change of leaders, and how long its slowest call took.
load_up() {
  rm -f "$T/stop"  # each begins with none of its keys
  for tenant in default other; do expect 0 store rm --prefix k --force --tenant $tenant; done
  "$MC_BIN/store-history" --master "$LIST" --time 60s --timeout 10s --clients 4 --stop "$T/stop" \
    --output json >"$T/history" 2>"$T/wrong" </dev/null &
  LOAD=$!
  PIDS["load"]=$LOAD
}
# What the masters that run have done so far, and whether the load has them do much more. Of all of them:
# on a busy machine the leader may change by itself.
done_by_all() { # COUNTER
  for m in "${MASTERS[@]}"; do
    curl -fsS -m 5 "http://$(jq -r .http "$T/$m.json")/metrics" 2>/dev/null || true
  done | awk -v n="$1" '$1 ~ n { sum += $2 } END { print sum + 0 }'
}
gone_on() { # HITS PUTS
  [ "$(done_by_all '^mc_store_hits_total')" -gt "$1" ] && [ "$(done_by_all '^mc_store_puts_total')" -gt "$2" ]
}
loaded() { # WHAT
  local hits puts
  hits=$(done_by_all '^mc_store_hits_total') puts=$(done_by_all '^mc_store_puts_total')
  until_true 30 "$1: the load does not move" gone_on $((hits + 60)) $((puts + 30))
}
load_down() {
  touch "$T/stop"
  local rc=0
  wait "$LOAD" || rc=$?
  unset "PIDS[load]"
  [ $rc = 0 ] || { head -20 "$T/wrong" >&2; die "$1: the history is wrong"; }
  jq -e '.got > 50 and .stored > 20' "$T/history" >/dev/null || die "$1: hardly anything happened"
  jq -e '.lost == 0' "$T/history" >/dev/null || die "$1: a client saw an error: $(cat "$T/wrong")"
  echo "$1: a new leader after $2 ms, the slowest of $(jq .operations "$T/history") calls took" \
    "$(jq '."slowest-ms" | round' "$T/history") ms"
}

for how in killed stopped ended; do
  load_up
  loaded "before a leader is $how"
  until_true 30 "nobody leads before one is $how" some_leads
  before=$(epoch_of "$old")
  began=$(now_ms)
  case $how in
    killed) kill_9 "$old" ;;
    stopped) kill -STOP "${PIDS[$old]}" ;;
    ended) stop "$old" ;;
  esac
  until_true 30 "$how: nobody took over with a later epoch" leads_not "$old" "$before"
  took=$(($(now_ms) - began))
  all_there "after $old was $how"
  # Calls that are made only once find it too.
  expect 0 "$MC_BIN/mc-store" why stay1 --master "$LIST"
  if [ $how = stopped ]; then
    kill -CONT "${PIDS[$old]}"
    # It knows at once that it leads no more, and whom to ask.
    expect 0 "$MC_BIN/mc-store" stat --output json --master "$(address "$old")"
    [ "$(jq .epoch "$T/out")" -gt "$before" ] || die "an old leader answers"
    # On a busy machine it may have been elected again since.
    ! leads "$old" || [ "$(epoch_of "$old")" -gt "$taken" ] || die "two lead"
  fi
  loaded "after $old was $how"
  load_down "$how" "$took"
  [ $how = stopped ] || one_master "$old"
done
all_there "at the end"

# Without etcd the leader leads to the end of its lease; with it again, one does.
kill -STOP "${PIDS[etcd]}"
nobody() { ! leader; }
until_true 30 "a master leads without etcd" nobody
expect 3 store get stay1 --out "$T/back" --timeout 1s
kill -CONT "${PIDS[etcd]}"
until_true 30 "nobody leads when etcd is back" leader
all_there "after etcd was away"
