#!/usr/bin/env bash
# F102, a serving cluster with a pool: conductor, workers, store and clients are hosts on one network, each in
# a namespace of its own, and hosts are cut off as in tests/net/partitions.sh, with requests under
# way. Each request ends within its limits, with the text of a quiet network or an error that says
# why; soon after the network is whole requests are answered again, and workers keep nothing of any
# that ended. MC_SOAK=SECONDS: for how long.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/../daemons.inc"
# shellcheck disable=SC2034  # hosts.inc reads it
HOSTS=(conductor prefill p2 decode store clients)
source "$(dirname "$0")/hosts.inc"
SECONDS_LONG=${MC_SOAK:-40}
SEED=${MC_SEED:-$RANDOM}
RANDOM=$SEED

head -c 32 /dev/urandom | base64 >"$T/key"
chmod 600 "$T/key"
# start NAME HOST PROGRAM [FLAGS...]
start() {
  launch "$1" nsenter -n -t "${HOLDER[$2]}" "$MC_BIN/$3" "${@:4}" --listen "${ADDRESS[$2]}:0" \
    --cluster-key "$T/key"
}
start master store mc-master --http 127.0.0.1:0 --events "${ADDRESS[store]}:0" --client-ttl "$(ms 1500)" \
  --suspect-after "$(ms 1000)"
MASTER=$(address master)
data=(--transports tcp --peer-timeout "$(ms 500)" --heartbeat "$(ms 100)")
start node store mc-store serve --http 127.0.0.1:0 --name node --master "$MASTER" --size 64MiB "${data[@]}" \
  --data "${ADDRESS[store]}:0"
start conductor conductor mc-conductor --model tiny --http "${ADDRESS[conductor]}:0" --http-without-keys --worker-ttl "$(ms 1000)" \
  --step-timeout "$(ms 500)" --prefill-timeout "$(ms 1000)" --token-timeout "$(ms 1000)" \
  --queue-timeout "$(ms 1000)" --master "$MASTER"
http=$(jq -r .http "$T/conductor.json")
for worker in prefill p2 decode; do
  role=${worker/p2/prefill}
  start $worker $worker mc-$role --name $worker --model tiny --conductor "$(address conductor)" --http 127.0.0.1:0 \
    --master "$MASTER" --kv-deadline "$(ms 1000)" --data "${ADDRESS[$worker]}:0" "${data[@]}"
done

# ask N FILE: prints a status of HTTP, or 000. It ends long before curl's own limit.
ask() {
  on clients curl -sS -m $((60 * SLOW)) -w '%{http_code}' -H 'content-type: application/json' -o "$2" \
    "http://$http/v1/completions" -d "$(jq -nc --arg p "$(for i in $(seq 40); do echo "cut off $1 times $i"; done)" \
      '{model: "tiny", prompt: $p, seed: 3, max_tokens: 12, ignore_eos: true}')" 2>"$2.err"
}
text() { jq -er '.choices[0].text' "$1"; }
declare -A QUIET=()
# answered N: the prompt N is answered, with the text that it had first
answered() {
  local status
  status=$(ask "$1" "$T/answer") || return
  [ "$status" = 200 ] || return
  [ -n "${QUIET[$1]:-}" ] || QUIET[$1]=$(text "$T/answer")
  [ "$(text "$T/answer")" = "${QUIET[$1]}" ] || die "prompt $1: another text: $(cat "$T/answer")"
}
for n in 1 2 3; do until_true 60 "prompt $n is not answered at first" answered $n; done
# judge FILE N: how a request ended that was under way in a fault
judge() {
  local status
  status=$(cat "$1.status")
  case $status in
    200) [ "$(text "$1")" = "${QUIET[$2]}" ] || die "seed $SEED, ${FAULT[*]}: another text: $(cat "$1")" ;;
    000) [ "${FAULT[1]}" = clients ] || [ "${FAULT[2]}" = clients ] || [ "${FAULT[1]}" = conductor ] ||
      die "seed $SEED, ${FAULT[*]}: a request got no answer: $(cat "$1.err")" ;;
    *) jq -e '.error.message | length > 10' "$1" >/dev/null || die "no reason: $(cat "$1")" ;;
  esac
}
rests() { # ROLE
  on "$1" curl -fsS -m 10 "http://$(jq -r .http "$T/$1.json")/state" >"$T/state" &&
    jq -e '(.blocks.used? // 0) + (.transactions? // 0) + (.lent? // 0) + (.waiting? // 0) + (.running? // 0) +
      ((.blocks_total? // 0) - (.blocks_free? // 0)) == 0' "$T/state"
}
end=$((SECONDS + SECONDS_LONG))
turns=0 slowest=0 good=0 failed=0
while [ $SECONDS -lt $end ]; do
  turns=$((turns + 1))
  draw_fault $turns
  fault begin
  asking=()
  for n in 1 2 3; do
    ask $n "$T/in$n" >"$T/in$n.status" &
    asking+=($!)
  done
  fault_time $((RANDOM % 2 == 0 ? 400 : 1700)) # within a worker's time to live, and past it
  fault end
  healed=${EPOCHREALTIME/./}
  for n in 1 2 3; do until_true 30 "seed $SEED, turn $turns: '${FAULT[*]}' and no answer since" answered $n; done
  took=$(((${EPOCHREALTIME/./} - healed) / 1000))
  [ $took -le $slowest ] || { slowest=$took last=${FAULT[*]}; }
  for n in 1 2 3; do
    wait "${asking[n - 1]}" || true
    judge "$T/in$n" $n
    if [ "$(cat "$T/in$n.status")" = 200 ]; then good=$((good + 1)); else failed=$((failed + 1)); fi
  done
done
[ $slowest -le $((6000 * SLOW)) ] || die "seed $SEED: answers only $slowest ms after '$last', later than worker-ttl + 5 s"
for worker in prefill p2 decode; do until_true 60 "$worker holds what no request needs" rests $worker; done
for name in prefill p2 decode conductor node master; do stop $name; done
echo "$turns turns, seed $SEED: $good answered, $failed failed with a reason, answers within $slowest ms ($last)"
