#!/usr/bin/env bash
# mc-topo on this machine, on recorded machines and on bad input.
. "$(dirname "$0")/../common.inc"
topo=$MC_BIN/mc-topo

expect 0 "$topo" show
grep -q '^node [0-9]' "$T/out" || die "show lists no NUMA node"
grep -q '^CUDA: .*kernels' "$T/out" || die "show does not say what there is of CUDA"
grep -q '^NVML: ' "$T/out" || die "show does not say what there is of NVML"
expect 0 "$topo" show --output json
python3 - "$T/out" <<'PY' || die "show --output json is not what it should be"
import json, sys
machine = json.load(open(sys.argv[1]))
assert machine['source'] == 'live' and machine['numa_nodes'][0]['cpus'], machine
assert machine['cuda']['devices'] or machine['cuda']['why_none'], machine['cuda']
PY
expect 0 "$topo" tiers
expect 0 "$topo" tiers --output json
python3 -m json.tool "$T/out" >/dev/null || die "tiers --output json is not JSON"

# NVML, loaded at its first use: a stand-in with two GPUs that this machine's /sys does not have.
expect 0 "$topo" --version
grep -q '^NVML: ' "$T/out" || die "--version does not say what there is of NVML: $(cat "$T/out")"
cat >"$T/gpus" <<'GPUS'
versions 12.550.54 550.54
gpu 00000000:4F:00.0 NVIDIA H100 80GB HBM3
links 17 4 switch 00000000:07:00.0
down 1
gpu 00000000:50:00.0 NVIDIA H100 80GB HBM3
links 18 4 switch 00000000:07:00.0
pair 0 1 40 0 0
GPUS
with_nvml() {  # STATUS COMMAND...
  local status=$1
  shift
  expect "$status" env LD_LIBRARY_PATH="$MC_BIN/nvml-0-stand-in" NVML_STAND_IN="$T/gpus" "$@"
}
if [ -e "$MC_BIN/nvml-0-stand-in" ] && ! ls /usr/lib/*/libnvidia-ml.so.1 >/dev/null 2>&1; then
  with_nvml 0 "$topo" --version
  grep -q '^NVML: NVML 12.550.54, driver 550.54$' "$T/out" || die "--version: $(cat "$T/out")"
  with_nvml 0 "$topo" show
  grep -q '0000:4f:00.0  gpu 0, NVIDIA H100 80GB HBM3, NVLink 4 x17 through switches to gpu 1' \
    "$T/out" || die "show: $(cat "$T/out")"
  grep -q '^0 *X  NV17$' "$T/out" || die "show has no table: $(cat "$T/out")"
  with_nvml 0 "$topo" matrix --output json
  jq -e '.gpu_links == [["X", "NV17"], ["NV17", "X"]]' "$T/out" >/dev/null || die "$(cat "$T/out")"
  with_nvml 0 "$topo" show --svg
  grep -q '>NV17<' "$T/out" || die "the picture has no table"
  with_nvml 0 "$topo" show --dot
  grep -q '"gpu0" -- "switches"' "$T/out" || die "the graph has no switches: $(cat "$T/out")"
  with_nvml 1 "$topo" check
  grep -q 'nvlink-down.*GPU 0 (0000:4f:00.0): 17 of its 18 NVLinks are up' "$T/out" ||
    die "check: $(cat "$T/out")"
  with_nvml 0 "$topo" capture "$T/gpu-machine"
  expect 0 "$topo" matrix --sysfs "$T/gpu-machine" --output json
  jq -e '.gpu_links[0][1] == "NV17"' "$T/out" >/dev/null || die "replayed: $(cat "$T/out")"
  with_nvml 0 "$topo" diff live "$T/gpu-machine"
  echo 'fail init 18' >"$T/gpus"
  with_nvml 0 "$topo" show
  grep -q '^NVML: no NVML: Driver/library version mismatch (nvmlInit' "$T/out" || die "$(cat "$T/out")"
fi

# Bad input names the thing and the remedy.
expect 1 "$topo" show --sysfs "$T/absent"
grep -q "$T/absent: no such folder: give the folder that holds" "$T/err" || die "$(cat "$T/err")"
mkdir "$T/empty"
expect 2 "$topo" tiers --sysfs "$T/empty"
grep -q 'not a recorded sysfs' "$T/err" || die "$(cat "$T/err")"
mkdir -p "$T/bad/sys/devices/system/node/node0"
echo '0-zebra' >"$T/bad/sys/devices/system/node/node0/cpulist"
expect 2 "$topo" show --sysfs "$T/bad"
grep -q "node0/cpulist: '0-zebra' is not a CPU list" "$T/err" || die "$(cat "$T/err")"

# XML: neither kind, malformed, cut short, of a format that libhwloc does not read, expanding.
expect_bad_xml() {  # CONTENT TEXT
  printf '%s' "$1" >"$T/bad.xml"
  expect 2 "$topo" tiers --xml "$T/bad.xml"
  grep -q -- "$2" "$T/err" || die "$1: $(cat "$T/err")"
}
expect_bad_xml '' 'no element'
expect_bad_xml '<html/>' 'root element is <html>'
expect_bad_xml '<topology version="2.0"><object>' 'has no end: cut short'
expect_bad_xml '<topology version="2.0"></object>' 'where </topology> was due'
expect_bad_xml '<topology version="2.0"/>' 'no object with CPUs'
expect_bad_xml '<!DOCTYPE a [<!ENTITY b "b">]><a/>' 'definitions in the document type are refused'
expect_bad_xml '<system><cpu numaid="x"/></system>' 'is no NUMA node'
expect_bad_xml '<system><cpu numaid="0"><pci busid="0:0"/></cpu></system>' 'is no PCI address'
printf '<topology version="3.0"/>' >"$T/bad.xml"
expect 1 "$topo" tiers --xml "$T/bad.xml"
grep -q 'hwloc XML of format 3.0' "$T/err" || die "$(cat "$T/err")"
expect 2 "$topo" tiers --xml "$T/bad.xml" --sysfs "$T/empty"
python3 -c "print('<topology version=\"2.0\">' + '<object>' * 100000)" >"$T/deep.xml"
expect 2 "$topo" show --xml "$T/deep.xml"
grep -q 'nest deeper than' "$T/err" || die "$(cat "$T/err")"
python3 - "$T/many.xml" <<'PY'
import sys
place = lambda i: f'{i >> 13:04x}:{i >> 5 & 255:02x}:{i & 31:02x}.0'
with open(sys.argv[1], 'w') as f:
    f.write('<system version="1"><cpu numaid="0" affinity="1">')
    for i in range(0, 80000, 2):
        f.write(f'<pci busid="{place(i)}" class="0x030200" vendor="0x10de"><gpu dev="{i}"/></pci>'
                f'<pci busid="{place(i + 1)}" class="0x020700"><nic><net name="m{i}" port="1"/></nic></pci>')
    f.write('</cpu></system>')
PY
expect 2 "$topo" tiers --xml "$T/many.xml"
grep -q 'many.xml: 40000 GPUs: a machine has at most 1024' "$T/err" || die "$(cat "$T/err")"

# This machine, recorded and looked at again, is the same machine.
expect 0 "$topo" capture "$T/here"
expect 0 "$topo" diff live "$T/here"
grep -q '^no difference$' "$T/out" || die "$(cat "$T/out")"
expect 1 "$topo" capture "$T/here"
grep -q 'exists and is not empty' "$T/err" || die "$(cat "$T/err")"
(mkdir "$T/nowhere" && cd "$T/nowhere" && expect 2 "$topo" capture '' && [ -z "$(ls)" ]) ||
  die "a folder without a name: $(cat "$T/err")"
grep -q 'the folder has no name: give a new one' "$T/err" || die "$(cat "$T/err")"
expect 0 "$topo" show --sysfs "$T/here" --output json
cp "$T/out" "$T/here.json"
expect 0 "$topo" diff "$T/here.json" "$T/here"
"$topo" check --sysfs "$T/here" --output json >"$T/out" || [ $? = 1 ] || die "check fails"
python3 -m json.tool "$T/out" >/dev/null || die "check --output json is not JSON"
expect 0 "$topo" matrix --form reference
expect 1 "$topo" pair live "$T/absent.json"

# A running node tells of its machine, which is this one, and its rails are measured.
source "$(dirname "$0")/../daemons.inc"
launch node "$MC_BIN/mc-xfer" serve --listen 127.0.0.1:0 --http 127.0.0.1:0 --size 1MiB
peer=$(address node)
expect 0 "$topo" show --node "$peer"
grep -q "^node $peer: NUMA nodes" "$T/out" || die "show --node: $(cat "$T/out")"
expect 0 "$topo" diff live "node:$peer"
expect 0 "$topo" pair live "node:$peer"
expect 0 "$topo" probe "$peer"
grep -q ' us  mapped$' "$T/out" || die "probe maps nothing: $(cat "$T/out")"
expect 0 "$topo" probe "$peer" --output json
python3 - "$T/out" <<'PY' || die "probe --output json is not what it should be"
import json, sys
rails = json.load(open(sys.argv[1]))['rails']
assert rails and all(r['round_trip_us'] > 0 for r in rails) and any(r['mapped'] for r in rails), rails
PY
expect 3 "$topo" show --node 127.0.0.1:1
expect 3 "$topo" probe 127.0.0.1:1
expect 2 "$topo" probe "$peer" --pings 0
expect 2 "$topo" show --node "$peer" --sysfs "$T/here"

# Recorded machines have exactly the tiers that are known to be right.
fixtures=${MC_TEST_SHARED:-}/fixtures/topology
[ -e "$fixtures/mk_sysfs.py" ] || skip "no recorded machines at $fixtures (set MC_TEST_SHARED)"
cat >"$T/compare.py" <<'PY'
import json, sys
got, want = (json.load(open(f)) for f in sys.argv[1:])
tiers = lambda rows, key: {r[key]: [sorted(t) for t in r['tiers']] for r in rows}
places = lambda rows: {r['name']: (r['pci'], r['numa']) for r in rows}
bridged = lambda rows: {r['pci']: r['shared_bridge'] for r in rows}
left_out = {d['name'] for d in got['left_out']}
assert places(d for d in got['nics'] if d['name'] not in left_out) == places(want['nics'])
assert tiers(got['gpus'], 'pci') == tiers(want['gpus'], 'pci'), tiers(got['gpus'], 'pci')
assert {g['pci']: g['numa'] for g in got['gpus']} == {g['pci']: g['numa'] for g in want['gpus']}
assert bridged(got['gpus']) == bridged(want['gpus']), bridged(got['gpus'])
assert tiers(got['hosts'], 'numa') == tiers(want['hosts'], 'numa'), tiers(got['hosts'], 'numa')
assert got['memory_only_numa_nodes'] == want['memory_only_numa_nodes']
PY
for fixture in "$fixtures"/*/sysfs.txt; do
  folder=$(dirname "$fixture")
  name=$(basename "$folder")
  python3 "$fixtures/mk_sysfs.py" "$fixture" "$T/$name"
  expect 0 "$topo" show --sysfs "$T/$name"
  expect 0 "$topo" show --sysfs "$T/$name" --svg
  python3 -c "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])" "$T/out" || die "$name: svg"
  expect 0 "$topo" show --sysfs "$T/$name" --dot
  if command -v dot >/dev/null; then dot -Tcanon "$T/out" >/dev/null || die "$name: dot"; fi
  expect 0 "$topo" tiers --sysfs "$T/$name" --output json
  python3 "$T/compare.py" "$T/out" "$folder/expected.json" || die "$name: sysfs differs"
  for xml in "$folder"/source.*.xml; do
    [ -e "$xml" ] || continue
    expect 0 "$topo" show --xml "$xml"
    expect 0 "$topo" tiers --xml "$xml" --output json
    python3 "$T/compare.py" "$T/out" "$folder/expected.json" || die "$name: $xml differs"
  done
  echo "$name: tiers as expected"
done

# A port that goes down takes its device out of every tier, with the reason.
devices=("$T/$name"/sys/class/infiniband/*)
device=$(basename "${devices[0]}")
echo '1: DOWN' >"$T/$name/sys/class/infiniband/$device/ports/1/state"
expect 0 "$topo" tiers --sysfs "$T/$name"
grep -q "^left out  $device: no active port (port 1 is DOWN)" "$T/out" || die "$device not left out"
if grep '  tier ' "$T/out" | grep -qw "$device"; then die "$device is down, yet in a tier"; fi
expect 1 "$topo" check --sysfs "$T/$name"
grep -q "port-down.*$device" "$T/out" || die "check does not see the port down: $(cat "$T/out")"
expect 0 "$topo" capture --sysfs "$T/$name" "$T/copy"
expect 0 "$topo" diff "$T/$name" "$T/copy"
expect 1 "$topo" diff "$T/$name" "$fixtures/$name"/source.*.xml
expect 0 "$topo" pair "$T/$name" "$T/copy"
grep -q 'the same name' "$T/out" || die "pair: $(cat "$T/out")"
