#!/usr/bin/env bash
# F103, a conductor and its workers: each connection between them over a network that is slow, that forgets
# it while both ends hold it open, or that swallows everything, or every answer, for a while. Each
# process is in a network namespace of its own. A request ends within its limits, with the text of a
# quiet network or an error that says why, the next ones are answered again without a restart, and
# workers keep nothing of any.
source "$(dirname "$0")/../common.inc"
[ "$(id -u)" = 0 ] || skip "network namespaces need root"
for tool in ip nsenter unshare; do command -v $tool >/dev/null || skip "no $tool here"; done
unshare --net true 2>/dev/null || skip "network namespaces are not permitted here"
source "$(dirname "$0")/../daemons.inc"
source "$(dirname "$0")/forwarder.inc"

declare -A HOLDER=()
differs() { [ "$(readlink "/proc/$1/ns/net")" != "$(readlink /proc/self/ns/net)" ]; }
for host in conductor prefill decode; do
  unshare --net tail --pid=$$ -f /dev/null &
  HOLDER[$host]=$!
  # shellcheck disable=SC2034  # daemons.inc ends it
  PIDS["namespace of $host"]=$!
  until_true 30 "no namespace of its own" differs $!
  nsenter -n -t "${HOLDER[$host]}" ip link set lo up
done
# Bytes go to addresses beyond loopback, which want a key.
head -c 32 /dev/urandom | base64 >"$T/key"
chmod 600 "$T/key"
declare -A DATA=([prefill]=10.87.0.1 [decode]=10.87.0.2)
for host in prefill decode; do nsenter -n -t "${HOLDER[$host]}" ip addr add "${DATA[$host]}/32" dev lo; done
nsenter -n -t "${HOLDER[prefill]}" ip addr add "${DATA[decode]}/32" dev lo
# link NAME FROM TO ADDRESS: what FROM connects to at ADDRESS is TO's
link() { network "$1" "$4" "${HOLDER[$2]}" "${HOLDER[$3]}"; }
daemon() { launch "$1" nsenter -n -t "${HOLDER[$1]}" "$MC_BIN/mc-$1" "${@:2}" --listen 127.0.0.1:0 --http 127.0.0.1:0; }

daemon conductor --model tiny --cluster-key "$T/key" --worker-ttl "$(ms 1000)" --step-timeout "$(ms 500)" \
  --prefill-timeout "$(ms 1000)" --token-timeout "$(ms 1000)" --queue-timeout "$(ms 1000)"
http=$(jq -r .http "$T/conductor.json")
link beats prefill conductor "$(address conductor)"
link tokens decode conductor "$(address conductor)"
for role in prefill decode; do
  daemon $role --name "$role" --model tiny --cluster-key "$T/key" --data "${DATA[$role]}:0" --transports tcp \
    --conductor "$(address conductor)" --heartbeat "$(ms 100)" --peer-timeout "$(ms 500)" --kv-deadline "$(ms 1000)"
  link to_$role conductor $role "$(address $role)"
done
link kv_calls prefill decode "$(address decode)"
link kv_data prefill decode "$(jq -r '.data[0]' "$T/decode.json")"
[ "$(jq '.data | length' "$T/decode.json")" = 1 ] || die "several data addresses"

completion() { # FROM SECONDS FILE: prints its status
  nsenter -n -t "${HOLDER[$1]}" curl -sS -m "$2" -w '%{http_code}' -H 'content-type: application/json' -o "$3" \
    "http://$http/v1/completions" \
    -d '{"model":"tiny","prompt":"a network that forgets","seed":3,"max_tokens":12,"ignore_eos":true}'
}
# ask FILE: 0 for an answer, 1 for an error that says why. It ends long before curl's own limit.
ask() {
  local rc=0 status
  status=$(completion conductor $((60 * SLOW)) "$1") || rc=$?
  [ $rc = 0 ] || die "a request hung, or ended without an answer: status $rc of curl"
  [ "$status" = 200 ] && return
  jq -e '.error.message | length > 10' "$1" >/dev/null || die "no reason: $(cat "$1")"
  return 1
}
text() { jq -er '.choices[0].text' "$1"; }
# recovers WHEN: a request is answered, and each one that is has the text of a quiet network
recovers() {
  local deadline=$((SECONDS + 60 * SLOW))
  until ask "$T/answer"; do
    [ $SECONDS -lt $deadline ] || die "$1: no request is answered any more: $(cat "$T/answer")"
    pause_briefly
  done
  [ -s "$T/quiet" ] || cp "$T/answer" "$T/quiet"
  [ "$(text "$T/answer")" = "$(text "$T/quiet")" ] || die "$1: another text: $(cat "$T/answer")"
}
recovers "at first"
links=(beats tokens to_prefill to_decode kv_calls kv_data)
for link in "${links[@]}"; do opened_since "$link" 0 || die "nothing goes over $link"; done
for link in "${links[@]}"; do say "$link" "delay 5"; done
recovers "over a slow network"
for link in "${links[@]}"; do say "$link" pass; done
for link in "${links[@]}"; do
  say "$link" forget
  recovers "$link forgot its connections"
done
for fault in hold mute; do
  for link in "${links[@]}"; do
    say "$link" $fault
    ask "$T/answer" || true # it ends
    say "$link" pass
    recovers "$link passes again after $fault"
  done
done
link users prefill conductor "$http"
say users hold
expect 28 completion prefill $SLOW "$T/none"
recovers "beside a client that is cut off"
say users pass
expect 0 completion prefill $((60 * SLOW)) "$T/none"
# Nothing of all these requests is left on the workers.
rests() { # ROLE
  nsenter -n -t "${HOLDER[$1]}" curl -fsS -m 10 "http://$(jq -r .http "$T/$1.json")/state" >"$T/state" &&
    jq -e '(.blocks.used? // 0) + (.transactions? // 0) + (.lent? // 0) + (.waiting? // 0) + (.running? // 0) +
      ((.blocks_total? // 0) - (.blocks_free? // 0)) == 0' "$T/state"
}
for role in prefill decode; do until_true 60 "$role holds what no request needs" rests $role; done
for name in decode prefill conductor; do stop $name; done
