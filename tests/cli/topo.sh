# mc-topo on this machine, on recorded machines and on bad input.
. "$(dirname "$0")/../common.inc"
topo=$MC_BIN/mc-topo

expect 0 "$topo" show
grep -q '^node [0-9]' "$T/out" || die "show lists no NUMA node"
expect 0 "$topo" show --output json
python3 - "$T/out" <<'PY' || die "show --output json is not what it should be"
import json, sys
machine = json.load(open(sys.argv[1]))
assert machine['source'] == 'live' and machine['numa_nodes'][0]['cpus'], machine
PY
expect 0 "$topo" tiers
expect 0 "$topo" tiers --output json
python3 -m json.tool "$T/out" >/dev/null || die "tiers --output json is not JSON"

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

# Recorded machines have exactly the tiers that are known to be right.
fixtures=${MC_TEST_SHARED:-}/fixtures/topology
[ -e "$fixtures/mk_sysfs.py" ] || skip "no recorded machines at $fixtures (set MC_TEST_SHARED)"
for fixture in "$fixtures"/*/sysfs.txt; do
  name=$(basename "$(dirname "$fixture")")
  python3 "$fixtures/mk_sysfs.py" "$fixture" "$T/$name"
  expect 0 "$topo" show --sysfs "$T/$name"
  expect 0 "$topo" tiers --sysfs "$T/$name" --output json
  python3 - "$T/out" "${fixture%/*}/expected.json" <<'PY' || die "$name differs from its expected.json"
import json, sys
got, want = (json.load(open(f)) for f in sys.argv[1:])
tiers = lambda rows, key: {r[key]: [sorted(t) for t in r['tiers']] for r in rows}
places = lambda rows: {r['name']: (r['pci'], r['numa']) for r in rows}
assert places(got['nics']) == places(want['nics']), places(got['nics'])
assert tiers(got['gpus'], 'pci') == tiers(want['gpus'], 'pci'), tiers(got['gpus'], 'pci')
assert {g['pci']: g['numa'] for g in got['gpus']} == {g['pci']: g['numa'] for g in want['gpus']}
assert tiers(got['hosts'], 'numa') == tiers(want['hosts'], 'numa'), tiers(got['hosts'], 'numa')
assert got['memory_only_numa_nodes'] == want['memory_only_numa_nodes']
PY
  echo "$name: tiers as expected"
done

# A port that goes down takes its device out of every tier, with the reason.
devices=("$T/$name"/sys/class/infiniband/*)
device=$(basename "${devices[0]}")
echo '1: DOWN' >"$T/$name/sys/class/infiniband/$device/ports/1/state"
expect 0 "$topo" tiers --sysfs "$T/$name"
grep -q "^left out  $device: no active port (port 1 is DOWN)" "$T/out" || die "$device not left out"
if grep '  tier ' "$T/out" | grep -qw "$device"; then die "$device is down, yet in a tier"; fi
