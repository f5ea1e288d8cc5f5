#!/usr/bin/env bash
# F107, F102: three etcd, three masters, two nodes and clients are hosts on one network, each in a namespace of
# its own, and hosts are cut off as in tests/net/partitions.sh. No two masters lead at a time, no
# value that a client was told is stored is lost while its nodes live, no history is wrong, and soon
# after the network is whole one master leads and the store is used. MC_SOAK=SECONDS: for how long.
source "$(dirname "$0")/../common.inc"
command -v etcd >/dev/null || skip "no etcd: scripts/setup installs it"
source "$(dirname "$0")/store.inc"
ETCD=(e1 e2 e3)
MASTERS=(m1 m2 m3)
# shellcheck disable=SC2034  # hosts.inc reads it
HOSTS=("${ETCD[@]}" "${MASTERS[@]}" a b clients)
source "$(dirname "$0")/hosts.inc"
SECONDS_LONG=${MC_SOAK:-60}
SEED=${MC_SEED:-$RANDOM}
RANDOM=$SEED
TTL=$((2 * SLOW))

# ---- etcd
members='' etcd=''
for e in "${ETCD[@]}"; do
  members+=${members:+,}$e=http://${ADDRESS[$e]}:2380
  etcd+=${etcd:+,}${ADDRESS[$e]}:2379
done
for e in "${ETCD[@]}"; do
  at=http://${ADDRESS[$e]}
  on "$e" etcd --name "$e" --data-dir "$T/etcd-$e" --listen-client-urls "$at:2379" \
    --advertise-client-urls "$at:2379" --listen-peer-urls "$at:2380" --initial-advertise-peer-urls "$at:2380" \
    --initial-cluster "$members" --heartbeat-interval $((50 * SLOW)) --election-timeout $((500 * SLOW)) \
    --unsafe-no-fsync --log-level error >>"$T/etcd.log" 2>&1 </dev/null &
  PIDS[$e]=$!
done
etcd_answers() { grep -q true <<<"$(on clients curl -fsS -m 5 "http://${ADDRESS[e1]}:2379/health")"; }
until_true 60 "etcd does not start" etcd_answers

# ---- masters, nodes, clients
head -c 32 /dev/urandom | base64 >"$T/key"
chmod 600 "$T/key"
list=''
for m in "${MASTERS[@]}"; do
  launch "$m" nsenter -n -t "${HOLDER[$m]}" "$MC_BIN/mc-master" --listen "${ADDRESS[$m]}:0" \
    --events "${ADDRESS[$m]}:0" --http 127.0.0.1:0 --cluster-key "$T/key" --ha "etcd://$etcd/test" \
    --leader-ttl ${TTL}s --on-slow-offload wait "${PERIODS[@]}"
  list+=${list:+,}$(address "$m")
done
for n in a b; do
  launch $n nsenter -n -t "${HOLDER[$n]}" "$MC_BIN/mc-store" serve --name $n --master "$list" \
    --listen "${ADDRESS[$n]}:0" --data "${ADDRESS[$n]}:0" --http 127.0.0.1:0 --cluster-key "$T/key" \
    --transports tcp --heartbeat "$(ms 100)" --call-timeout "$(ms 300)" --peer-timeout "$(ms 1000)" --size 24MiB
done
client() { on clients timeout 60 "$MC_BIN/mc-store" "$1" --master "$list" --cluster-key "$T/key" "${@:2}"; }
blob 200000 1 "$T/value"
turns=0
whole() {
  client stat --timeout 2s --output json >"$T/stat" &&
    jq -e '(.nodes | length) == 2 and all(.nodes[]; .state == "ready") and .rebuilding == ""' "$T/stat" &&
    client put "mark/$turns" "$T/value" --timeout 2s && client get "mark/$turns" --out "$T/back" --timeout 2s &&
    cmp "$T/value" "$T/back"
}
until_true 60 "not whole at first" whole
# Never given up while both nodes live: no eviction takes them, no partition ends a node's process.
for i in $(seq 10); do
  blob $((i * 20000)) "$i" "$T/v$i"
  expect 0 client put "stay$i" "$T/v$i" --pin hard --replicas 2
done
all_there() {
  for i in $(seq 10); do
    client get "stay$i" --out "$T/back" --timeout 5s && cmp "$T/v$i" "$T/back" || return 1
  done
}

# Who leads, looked at from within each host. Two at a time: A before and after B.
lead_epoch() { on "$1" curl -fsS -m 2 "http://$(jq -r .http "$T/$1.json")/state" | jq -r '.epoch // 0'; }
leads() { [ "$(lead_epoch "$1" 2>/dev/null || echo 0)" -gt 0 ]; }
watch_leaders() {
  local one other
  while [ -d "$T" ] && [ ! -e "$T/stop" ]; do
    for one in "${MASTERS[@]}"; do
      leads "$one" || continue
      echo "$one" >>"$T/one"
      for other in "${MASTERS[@]}"; do
        [ "$other" != "$one" ] && leads "$other" && leads "$one" && echo "$one and $other" >>"$T/two"
      done
    done
    pause_briefly
  done
}
watch_leaders &
# shellcheck disable=SC2034  # daemons.inc ends it
PIDS["watch of leaders"]=$!

on clients "$MC_BIN/store-history" --master "$list" --cluster-key "$T/key" --timeout "$(ms 3000)" --clients 4 \
  --time "$((SECONDS_LONG * 3 + 120))s" --stop "$T/stop" --output json >"$T/history" 2>"$T/wrong" </dev/null &
clients=$!
# shellcheck disable=SC2034,SC2154  # a key of a table that daemons.inc reads
PIDS[history]=$clients
end=$((SECONDS + SECONDS_LONG))
slowest=0 changes=0 epoch=0
# Longer where no fault has made another lead yet.
while [ $SECONDS -lt $end ] || { [ $changes -lt 2 ] && [ $SECONDS -lt $((end + SECONDS_LONG)) ]; }; do
  turns=$((turns + 1))
  draw_fault $turns
  fault begin
  fault_time $((RANDOM % 3 == 0 ? 700 : 4500)) # within a leader's time, and past it
  fault end
  healed=${EPOCHREALTIME/./}
  until_true 60 "turn $turns, seed $SEED: the store is not whole again after '${FAULT[*]}'" whole
  took=$(((${EPOCHREALTIME/./} - healed) / 1000))
  [ $took -le $slowest ] || { slowest=$took last=${FAULT[*]}; }
  until_true 30 "turn $turns, seed $SEED: a value is lost after '${FAULT[*]}'" all_there
  now=$(jq .epoch "$T/stat")
  [ "$now" = "$epoch" ] || changes=$((changes + 1))
  epoch=$now
  kill -0 $clients || break
done
end_history
[ ! -s "$T/two" ] || die "seed $SEED: two masters led at a time: $(sort "$T/two" | uniq -c)"
[ "$(sort -u "$T/one" | wc -l)" -gt 1 ] || die "seed $SEED: no two masters were seen to lead, one after the other"
echo "$turns turns, $changes leaders, seed $SEED, whole again within $slowest ms (${last:-})"
