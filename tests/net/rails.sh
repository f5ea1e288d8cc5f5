#!/usr/bin/env bash
# Rails between two network namespaces: a rail that is cut and heals in mid-transfer fails no request
# and comes back into use; a peer whose NIC of the rail map is dead is reached over another pair; an
# address that does not lead to the peer is named in the error. Contents are verified each time.
source "$(dirname "$0")/../common.inc"
xfer=$MC_BIN/mc-xfer
[ "$(id -u)" = 0 ] || skip "network namespaces need root"
for tool in ip tc nsenter unshare; do command -v $tool >/dev/null || skip "no $tool here"; done
unshare --net true 2>/dev/null || skip "network namespaces are not permitted here"

source "$(dirname "$0")/../daemons.inc"
# A namespace lives as long as the process that holds it, which ends with this script.
hold() {
  unshare --net tail --pid=$$ -f /dev/null &
  PIDS[$1]=$!
  until_true 30 "no namespace of its own" differs $!
}
differs() { [ "$(readlink "/proc/$1/ns/net")" != "$(readlink /proc/self/ns/net)" ]; }
hold a
A=${PIDS[a]}
hold b
B=${PIDS[b]}
in_a() { nsenter -n -t "$A" "$@"; }
in_b() { nsenter -n -t "$B" "$@"; }

# link NAME NET RATE: one interface at both ends; .1 is the client's, .2 the server's
link() {
  ip link add "$1" netns "$A" type veth peer name "$1" netns "$B" || skip "no veth here"
  in_a ip addr add "10.87.$2.1/24" dev "$1"
  in_b ip addr add "10.87.$2.2/24" dev "$1"
  for side in "$A" "$B"; do
    nsenter -n -t "$side" ip link set "$1" up
    [ -z "${3:-}" ] || nsenter -n -t "$side" tc qdisc add dev "$1" root tbf rate "$3" burst 128kb \
      latency 20ms || skip "no tbf here"
  done
}
in_a ip link set lo up
in_b ip link set lo up
link ctl 9
for i in 0 1 2 3; do link r$i $i 400mbit; done

head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$T/key"
chmod 600 "$T/key"
# serve NAME DATA-ADDRESSES: in B; $peer is its control address
serve() {
  # nsenter becomes the program: the number kept is that of the program itself.
  launch "$1" nsenter -n -t "$B" "$xfer" serve --name "$1" --listen 10.87.9.2:0 \
    --http 127.0.0.1:0 --data "$2" --size 64MiB --cluster-key "$T/key" --transports tcp
  peer=$(address "$1")
}
client() {
  local verb=$1
  shift
  nsenter -n -t "$A" timeout 60 "$xfer" "$verb" "$peer" --transports tcp \
    --cluster-key "$T/key" "$@"
}
# carried NAME: how many bytes went through the client's end of a rail, both ways
carried() { in_a ip -s -j link show "$1" | jq '.[0].stats64 | .rx.bytes + .tx.bytes'; }
moves() { [ "$(carried "$1")" -gt $(($2 + ${3:-2000000})) ]; }  # NAME SINCE [BYTES]

# ---- four rails, one cut and healed in mid-transfer
serve four 10.87.0.2:0,10.87.1.2:0,10.87.2.2:0,10.87.3.2:0
for op in read write; do
  r2=$(carried r2) r3=$(carried r3)
  client bench --nics r0,r1,r2,r3 --op $op --block 1MiB --batch 16 --threads 1 --duration "$((8 * SLOW))s" \
    --output json >"$T/out" 2>"$T/err" &
  moving=$!
  until_true 30 "$op: the rail that is to be cut carries nothing" moves r2 "$r2"
  in_b ip link set r2 down
  # Batches of 16 MiB end without it: what it had under way went over the others.
  until_true 30 "$op: nothing moves without the rail that was cut" moves r3 "$(carried r3)" 16000000
  in_b ip link set r2 up
  until_true 30 "$op: the healed rail is not used again" moves r2 "$(carried r2)"
  rc=0
  wait $moving || rc=$?
  [ $rc = 0 ] || die "$op with a rail cut for a while failed ($rc): $(cat "$T/err")"
  jq -es 'all(.checked)' "$T/out" >/dev/null || die "$op: contents were not checked: $(cat "$T/out")"
  moves r3 "$r3" || die "$op: the fourth rail was not used"
  echo "$op with a cut: $(jq -c '.gb_per_s' "$T/out") GB/s"
done
expect 0 client paths --nics r0,r1,r2,r3 --bytes 1MiB --output json
jq -es '.[] | select(.transport == "tcp") | .rails | map(select(.mapped)) | length == 4 and
  all(.state == "healthy" or .state == "slow" or .state == "suspect")' "$T/out" >/dev/null ||
  die "paths: $(cat "$T/out")"
stop four

# ---- both rails of the map are dead, the pair across works: two NICs each, on one switch
hold c
C=${PIDS[c]}
in_c() { nsenter -n -t "$C" "$@"; }
in_c ip link add switch type bridge
in_c ip link set switch up
for end in "a0 $A 10.87.20.1" "a1 $A 10.87.21.1" "b0 $B 10.87.20.2" "b1 $B 10.87.21.2"; do
  read -r nic pid address <<<"$end"
  in_c ip link add "port-$nic" type veth peer name "$nic" netns "$pid"
  in_c ip link set "port-$nic" master switch
  in_c ip link set "port-$nic" up
  nsenter -n -t "$pid" ip addr add "$address/24" dev "$nic"
  nsenter -n -t "$pid" ip link set "$nic" up
  # Each NIC also leads to the other's network, and none answers for another or for a dead link.
  other=10.87.$([ "${nic:1}" = 0 ] && echo 21 || echo 20).0/24
  nsenter -n -t "$pid" ip route add "$other" dev "$nic" metric 100
  nsenter -n -t "$pid" bash -c "cd /proc/sys/net/ipv4/conf && echo 1 >all/arp_ignore &&
    echo 1 >all/ignore_routes_with_linkdown && echo 1 >$nic/ignore_routes_with_linkdown &&
    echo 0 >all/rp_filter && echo 0 >$nic/rp_filter" || skip "no sysctl here (the cuts passed)"
done
serve two 10.87.20.2:0,10.87.21.2:0
in_c ip link set port-b0 down
in_c ip link set port-a1 down
expect 0 client bench --nics a0,a1 --op read --block 256KiB --duration 300ms --output json
jq -es 'all(.checked)' "$T/out" >/dev/null || die "not checked: $(cat "$T/out")"
expect 0 client paths --nics a0,a1 --bytes 1MiB --output json
jq -es '.[] | select(.transport == "tcp") | .rails | map(select(.mapped | not)) | any(.slices > 0)' \
  "$T/out" >/dev/null || die "no slice left the rail map: $(cat "$T/out")"
stop two

# ---- an advertised address that does not lead there
serve wrong 127.0.0.1:0
expect 3 client bench --nics r0 --op read --block 64KiB --duration 100ms
grep -q 'advertises only 127.0.0.1:[0-9]*, which other hosts cannot reach: start it with --data' "$T/err" ||
  die "a loopback address advertised: unclear error: $(cat "$T/err")"
