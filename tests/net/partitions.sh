#!/usr/bin/env bash
# F102, a store: master, nodes and clients are hosts on one network, each in a namespace of its own, and
# hosts are cut off: wholly, with nothing that leaves them, with nothing that reaches them, or from
# one other host alone, one way or both. Clients use the store meanwhile, and their history is
# checked: no wrong bytes, nothing old after something newer was acknowledged, nothing hangs. Each
# time the store is whole again soon after the network is. MC_SOAK=SECONDS: for how long.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/store.inc"
SECONDS_LONG=${MC_SOAK:-30}
SEED=${MC_SEED:-$RANDOM}
RANDOM=$SEED

# shellcheck disable=SC2034  # hosts.inc reads it
HOSTS=(master a b c clients)
source "$(dirname "$0")/hosts.inc"

# ---- the store
head -c 32 /dev/urandom | base64 >"$T/key"
chmod 600 "$T/key"
launch master nsenter -n -t "${HOLDER[master]}" "$MC_BIN/mc-master" --listen "${ADDRESS[master]}:0" \
  --events "${ADDRESS[master]}:0" --http 127.0.0.1:0 --cluster-key "$T/key" --on-slow-offload wait "${PERIODS[@]}"
MASTER=$(address master)
node() { # NAME [FLAGS...]
  launch "$1" nsenter -n -t "${HOLDER[$1]}" "$MC_BIN/mc-store" serve --name "$1" --master "$MASTER" \
    --listen "${ADDRESS[$1]}:0" --data "${ADDRESS[$1]}:0" --http 127.0.0.1:0 --cluster-key "$T/key" \
    --transports tcp --heartbeat "$(ms 100)" --call-timeout "$(ms 300)" --peer-timeout "$(ms 1000)" \
    --size 6MiB "${@:2}"
}
node a --ssd "$T/a.ssd" --ssd-size 64MiB --ssd-flush 20ms --ssd-staging 4MiB --ssd-lease 300ms
node b --ssd "$T/b.ssd" --ssd-size 64MiB --ssd-flush 20ms --ssd-staging 4MiB --ssd-lease 300ms
node c
client() { on clients timeout 30 "$MC_BIN/mc-store" "$1" --master "$MASTER" --cluster-key "$T/key" "${@:2}"; }
blob 200000 1 "$T/value"
whole() { # all nodes serve, and what is put is got
  client stat --timeout 1s --output json >"$T/stat" &&
    jq -e '(.nodes | length) == 3 and all(.nodes[]; .state == "ready") and .rebuilding == ""' "$T/stat" &&
    client put "mark/$turns" "$T/value" --timeout 1s && client get "mark/$turns" --out "$T/back" --timeout 1s &&
    cmp "$T/value" "$T/back"
}
turns=0
until_true 30 "not whole at first" whole

nsenter -n -t "${HOLDER[clients]}" "$MC_BIN/store-history" --master "$MASTER" --cluster-key "$T/key" \
  --time "$((SECONDS_LONG * 3 + 120))s" --stop "$T/stop" --output json >"$T/history" 2>"$T/wrong" </dev/null &
clients=$!
# shellcheck disable=SC2034,SC2154  # a key of a table that daemons.inc reads
PIDS[history]=$clients
end=$((SECONDS + SECONDS_LONG))
slowest=0
while [ $SECONDS -lt $end ]; do
  turns=$((turns + 1))
  draw_fault $turns
  fault begin
  fault_time $((RANDOM % 2 == 0 ? 700 : 2500)) # within a node's time to live, and past it
  fault end
  healed=${EPOCHREALTIME/./}
  until_true 30 "turn $turns, seed $SEED: the store is not whole again after '${FAULT[*]}'" whole
  took=$(((${EPOCHREALTIME/./} - healed) / 1000))
  [ $took -le $slowest ] || { slowest=$took last=${FAULT[*]}; }
  kill -0 $clients || break
done
end_history
[ $slowest -le $((6500 * SLOW)) ] || die "seed $SEED: whole only $slowest ms after '$last', later than client-ttl + 5 s"
for name in a b c master; do stop $name; done
echo "$turns turns, seed $SEED, whole again within $slowest ms ($last)"
