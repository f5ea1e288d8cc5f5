#!/usr/bin/env bash
# A peer whose host vanishes without a word: its link is cut in the middle of its transfers, and no
# packet of it comes any more. Its owner notices, though it expects nothing of that peer (F18): the
# connections and their threads are gone after ten times --peer-timeout.
source "$(dirname "$0")/../common.inc"
xfer=$MC_BIN/mc-xfer
[ "$(id -u)" = 0 ] || skip "network namespaces need root"
for tool in ip nsenter unshare; do command -v $tool >/dev/null || skip "no $tool here"; done
unshare --net true 2>/dev/null || skip "network namespaces are not permitted here"

source "$(dirname "$0")/../daemons.inc"
unshare --net tail --pid=$$ -f /dev/null &
B=$!
# shellcheck disable=SC2154  # a key, not a variable
PIDS[b]=$B
differs() { [ "$(readlink "/proc/$B/ns/net")" != "$(readlink /proc/self/ns/net)" ]; }
until_true 30 "no namespace of its own" differs
unshare --net tail --pid=$$ -f /dev/null &
A=$!
# shellcheck disable=SC2154  # a key, not a variable
PIDS[a]=$A
differs() { [ "$(readlink "/proc/$A/ns/net")" != "$(readlink /proc/self/ns/net)" ]; }
until_true 30 "no namespace of its own" differs
ip link add cut netns "$A" type veth peer name cut netns "$B" || skip "no veth here"
for end in "$A 10.88.0.1" "$B 10.88.0.2"; do
  read -r pid address <<<"$end"
  nsenter -n -t "$pid" ip addr add "$address/24" dev cut
  nsenter -n -t "$pid" ip link set cut up
  nsenter -n -t "$pid" ip link set lo up
done

head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$T/key"
chmod 600 "$T/key"
common=(--transports tcp --cluster-key "$T/key" --peer-timeout "$(ms 1000)")
launch owner nsenter -n -t "$B" "$xfer" serve --listen 10.88.0.2:0 --http 127.0.0.1:0 \
  --data 10.88.0.2:0 --size 4MiB "${common[@]}"
owner=${PIDS[owner]}
threads() { find "/proc/$owner/task" -mindepth 1 -maxdepth 1 | wc -l; }
port=$(jq -r '.data[0]' "$T/owner.json")
# Established connections of the data port, as the kernel has them.
established() {
  awk -v port="$(printf ':%04X' "${port##*:}")" '$4 == "01" && $2 ~ port "$"' "/proc/$owner/net/tcp" | wc -l
}
before=$(threads)

nsenter -n -t "$A" "$xfer" bench "$(address owner)" --op read --block 4KiB --batch 1 --threads 1 \
  --duration 120s "${common[@]}" >"$T/bench.log" 2>&1 &
# shellcheck disable=SC2154  # a key, not a variable
PIDS[peer]=$!
connected() { [ "$(established)" -ge 1 ] && [ "$(threads)" -gt "$before" ]; }
until_true 30 "the peer did not connect" connected
kill -STOP "${PIDS[peer]}" # no request is under way: the owner waits for the next
fault_time 2000
connected || die "an idle peer whose host answers lost its connection: $(cat "$T/owner.log")"
nsenter -n -t "$A" ip link set cut down
alone() { [ "$(established)" = 0 ] && [ "$(threads)" -le "$before" ]; }
until_true 25 "the owner keeps $(established) connections of a host that is gone" alone
stop owner
