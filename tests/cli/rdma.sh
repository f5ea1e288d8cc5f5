#!/usr/bin/env bash
# mc-xfer over RDMA: without a verbs library the other transports do; on emulated NICs, contents are
# right over one, two, four and eight of them, and --nics says which.
source "$(dirname "$0")/../common.inc"
xfer=$MC_BIN/mc-xfer
source "$(dirname "$0")/../daemons.inc"
trap 'rm -f "${fabric:-}"; daemons_down' EXIT
# serve NAME OPTIONS...: $peer is its control address
serve() {
  launch "$1" "$xfer" serve --listen 127.0.0.1:0 --http 127.0.0.1:0 --size 64MiB --name "$@"
  peer=$(address "$1")
}

# ---- a library that cannot be loaded
mkdir "$T/lib"
echo none >"$T/lib/libibverbs.so.1"
bare=(env "LD_LIBRARY_PATH=$T/lib")
expect 3 "${bare[@]}" "$xfer" bench 127.0.0.1:1 --transports shm,rdma,tcp --duration 50ms
expect 1 "${bare[@]}" "$xfer" bench 127.0.0.1:1 --transports rdma --duration 50ms
grep -q 'libibverbs.so.1.*install libibverbs1' "$T/err" || die "no library: unclear error: $(cat "$T/err")"
serve bare --transports shm,rdma,tcp
expect 0 "${bare[@]}" "$xfer" bench "$peer" --transports rdma,tcp --block 64KiB --duration 50ms

# ---- emulated NICs
emulator=$MC_BIN/verbs-emulator/verbs-emulator
[ -x "$emulator" ] || skip "built without libibverbs-dev: apt-get install libibverbs-dev, configure again"
fabric=$(mktemp /dev/shm/mc-test.XXXXXX)
export VERBS_EMU_FABRIC=$fabric LD_LIBRARY_PATH=$MC_BIN/verbs-emulator
"$emulator" create hosts=2 nics=8 link=ethernet >/dev/null
export VERBS_EMU_HOST=0
serve emulated --transports rdma
export VERBS_EMU_HOST=1
head -c 5000001 /dev/urandom >"$T/file"
nics=""
for n in 1 2 4 8; do
  for ((i = $((n / 2)); i < n; ++i)); do nics+=${nics:+,}emu$i; done
  expect 0 "$xfer" bench "$peer" --transports rdma --nics "$nics" --block 64KiB,1MiB --batch 4 \
    --threads 2 --duration 50ms --output json
  jq -es 'length == 4 and all(.checked and .gb_per_s > 0 and .transport == "rdma")' "$T/out" >/dev/null ||
    die "$n NICs: $(cat "$T/out")"
done
expect 0 "$xfer" copy "$T/file" "$peer/4096" --transports rdma
grep -q '5000001 bytes .* over rdma' "$T/out" || die "no word of rdma: $(cat "$T/out")"
expect 0 "$xfer" copy "$peer/4096" "$T/back" --bytes 5000001 --transports rdma --nics emu7
cmp "$T/file" "$T/back" || die "rdma brought other bytes back"
expect 0 "$xfer" paths "$peer" --transports rdma,tcp --nics emu0,emu1 --output json
jq -es 'map(select(.transport == "rdma")) | .[0].chosen and (.[0].rails | length) == 16' "$T/out" >/dev/null ||
  die "paths: $(cat "$T/out")"
# F144: the published experiments run over the NICs where they are allowed.
expect 0 "$xfer" bench "$peer" --transports rdma,tcp --preset fig3 --duration 10ms
grep -q 'over RDMA' "$T/out" || die "preset: $(cat "$T/out")"
# F39: a device that cannot be used is named, with the reason.
"$emulator" set 1:emu7 transport=iwarp
expect 0 "$xfer" paths "$peer" --transports rdma,tcp --output json
jq -es 'map(select(.transport == "rdma"))[0] | .why | contains("emu7 is left out: an iWARP device")' "$T/out" >/dev/null ||
  die "iWARP: $(cat "$T/out")"
"$emulator" set 1:emu7 transport=infiniband
# F43: the address of the option is that of the descriptor: nothing else listens there.
fixed=$(free_port)
VERBS_EMU_HOST=0 serve fixed --transports rdma --rdma-control "127.0.0.1:$fixed"
expect 0 "$xfer" bench "$peer" --transports rdma --block 64KiB --duration 50ms
(exec 3<>"/dev/tcp/127.0.0.1/$fixed") || die "nothing listens at --rdma-control"
stop fixed
peer=$(address emulated)

# ---- sets of files by NICs alone, although the kernel lets no NIC write to a file's pages (F29); a
# pull goes on from what is there (F143)
mkdir "$T/set" "$T/pulled"
head -c 6000001 /dev/urandom >"$T/set/a.bin"
VERBS_EMU_HOST=0 launch origin "$xfer" publish set-1 "$T/set" --shard 1MiB --transports rdma
head -c 3000000 "$T/set/a.bin" >"$T/pulled/.a.bin.mc-part"
truncate -s 6000001 "$T/pulled/.a.bin.mc-part"
expect 0 "$xfer" pull set-1 --from "$(address origin)" --to "$T/pulled" --transports rdma --nics emu0 --output json
jq -e '.bytes == 6000001 and .kept == 2097152' "$T/out" >/dev/null || die "pull: $(cat "$T/out")"
diff -r "$T/set" "$T/pulled" || die "other bytes arrived"
stop origin

expect 1 "$xfer" bench "$peer" --transports rdma --nics mlx5_0 --duration 50ms
grep -q "no RDMA device 'mlx5_0': there is emu0, emu1" "$T/err" || die "no such NIC: $(cat "$T/err")"

# ---- the tiers of NICs as seen from a GPU, of a recorded machine
machine=$MC_TEST_SHARED/fixtures/topology/mi300x-8gpu-8nic
[ -e "$machine/sysfs.txt" ] || skip "no recorded machines at ${machine%/*} (set MC_TEST_SHARED)"
python3 "${machine%/*}/mk_sysfs.py" "$machine/sysfs.txt" "$T/machine"
"$emulator" create hosts=2 nics=8 prefix=mlx5_ >/dev/null
VERBS_EMU_HOST=0 serve recorded --transports rdma --nics mlx5_0
expect 0 "$xfer" paths "$peer" --transports rdma --device stand-in:2@0000:1e:00.0 --sysfs "$T/machine" \
  --bytes 64KiB --output json
jq -es 'map(select(.transport == "rdma"))[0] | .memory_gpu == 2 and .memory_node == 0 and
  (.rails | map({(.local): .tier}) | add) ==
    {mlx5_2: 1, mlx5_0: 2, mlx5_1: 2, mlx5_3: 2, mlx5_4: 3, mlx5_5: 3, mlx5_6: 3, mlx5_7: 3}' \
  "$T/out" >/dev/null || die "not the tiers of that GPU: $(jq -c '[.memory_gpu, .memory_node, (.rails[] | [.local, .tier])]' "$T/out")"
expect 0 "$xfer" bench "$peer" --transports rdma --device stand-in:2@0000:1e:00.0 --sysfs "$T/machine" \
  --block 64KiB,1MiB --duration 50ms --output json
jq -es 'length == 4 and all(.checked and .gb_per_s > 0)' "$T/out" >/dev/null || die "device: $(cat "$T/out")"
