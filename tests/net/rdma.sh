#!/usr/bin/env bash
# A whole cluster over emulated RDMA NICs whose ports go down and come up, and which are taken out and
# put back, while it works: all requests finish, and no KV byte is wrong.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"
emulator=$MC_BIN/verbs-emulator/verbs-emulator
[ -x "$emulator" ] || skip "built without libibverbs-dev: apt-get install libibverbs-dev, configure again"
sample 60
# On machines with two sockets and NICs on both, where a recorded one is present.
machine=()
fixtures=$MC_TEST_SHARED/fixtures/topology
if [ -e "$fixtures/mk_sysfs.py" ]; then
  python3 "$fixtures/mk_sysfs.py" "$fixtures/lassen-power9-v100/sysfs.txt" "$T/machine"
  machine=(--topology "$T/machine")
else
  echo "without a topology: no recorded machines at $fixtures (set MC_TEST_SHARED)"
fi
cluster_up --prefill 2 --decode 2 --store 2 --block-size 512 --transport rdma --nics 4 "${machine[@]}"
fabric=$(cat "$T/cluster/fabric")
flap() {
  local i=0 nic
  while :; do
    nic=$((i % 8 * 4 + i / 8 % 3))  # one NIC of each host is left in peace
    case $((i % 3)) in
      0) "$emulator" --fabric "$fabric" port $nic flap ;;
      1)
        "$emulator" --fabric "$fabric" port $nic down
        fault_time 300
        "$emulator" --fabric "$fabric" port $nic up
        ;;
      2)
        "$emulator" --fabric "$fabric" nic $nic remove
        fault_time 300
        "$emulator" --fabric "$fabric" nic $nic insert
        ;;
    esac
    i=$((i + 1))
    fault_time 100
  done
}
flap >/dev/null 2>"$T/flap.log" &
flapper=$!
trap 'kill $flapper 2>/dev/null || true; cluster_down' EXIT
expect 0 "$MC_BIN/mc-replay" run --trace "$T/trace.jsonl" --url "$URL" --speed 4 --max-lag 10s \
  --output json --requests "$T/requests.jsonl" --require 'kv-errors==0' --require 'hit-tokens>0'
jq -e '.requests.sent == 60 and .requests.ok == 60 and .requests.failed == 0' "$T/out" >/dev/null ||
  die "not every request finished: $(jq -c .requests "$T/out")"
kill -0 $flapper 2>/dev/null || die "the NICs did not flap to the end: $(cat "$T/flap.log")"
kill $flapper
# The bytes went over the NICs, and over nothing else.
moved=0
for worker in p0 p1 d0 d1; do
  http=$(jq -r .http "$T/cluster/$worker.json")
  curl -fsS "http://$http/metrics" >"$T/metrics"
  ! grep -q 'mc_xfer_bytes_total{transport="tcp"}' "$T/metrics" || die "$worker used tcp"
  moved=$((moved + $(awk '/^mc_xfer_bytes_total\{transport="rdma"\}/ { print $2 }' "$T/metrics")))
done
[ "$moved" -gt 1000000 ] || die "only $moved bytes went over rdma"
[ ${#machine[@]} -gt 0 ] || exit 0
# NICs of the memory's own node are near, the others far.
expect 0 env VERBS_EMU_FABRIC="$fabric" VERBS_EMU_HOST=0 LD_LIBRARY_PATH="${emulator%/*}" \
  "$MC_BIN/mc-xfer" paths "$(jq -r .control "$T/cluster/p1.json")" --bytes 64KiB \
  --cluster-key "$T/cluster/cluster.key" --transports rdma --sysfs "$T/machine" --output json
jq -es 'map(select(.transport == "rdma"))[0] | .memory_node == 0 and ([.rails[].tier] | unique) == [1, 3]' "$T/out" >/dev/null ||
  die "no near and far NICs: $(jq -c '[.memory_node, (.rails[] | {local, tier})]' "$T/out")"
