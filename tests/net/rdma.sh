#!/usr/bin/env bash
# A whole cluster over emulated RDMA NICs whose ports go down and come up, and which are taken out and
# put back, while it works: all requests finish, and no KV byte is wrong.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"
emulator=$MC_BIN/verbs-emulator/verbs-emulator
[ -x "$emulator" ] || skip "built without libibverbs-dev: apt-get install libibverbs-dev, configure again"
sample 60
cluster_up --prefill 2 --decode 2 --store 2 --block-size 512 --transport rdma --nics 4
fabric=$(cat "$T/cluster/fabric")
flap() {
  local i=0 host nic
  while :; do
    host=$((i % 8)) nic=$((i / 8 % 3))  # one NIC of each is left in peace
    case $((i % 3)) in
      0) "$emulator" --fabric "$fabric" port "$host:emu$nic" flap ;;
      1)
        "$emulator" --fabric "$fabric" port "$host:emu$nic" down
        read -rt 0.3 <> <(:) || true
        "$emulator" --fabric "$fabric" port "$host:emu$nic" up
        ;;
      2)
        "$emulator" --fabric "$fabric" nic "$host:emu$nic" remove
        read -rt 0.3 <> <(:) || true
        "$emulator" --fabric "$fabric" nic "$host:emu$nic" insert
        ;;
    esac
    i=$((i + 1))
    read -rt 0.1 <> <(:) || true
  done
}
flap >/dev/null 2>"$T/flap.log" &
flapper=$!
trap 'kill $flapper 2>/dev/null || true; cluster_down' EXIT
expect 0 "$MC_BIN/mc-replay" run --trace "$T/trace.jsonl" --url "$URL" --speed 4 --max-lag 2s \
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
