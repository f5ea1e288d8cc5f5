#!/usr/bin/env bash
# mc-topo over machines that are odd in every way that is known: the tiers are worked out apart.
. "$(dirname "$0")/../common.inc"
drawn=20
[ -z "${MC_SANITIZE:-}" ] || drawn=4 # whose programs take their time to start
python3 "$(dirname "$0")/odd_machines.py" "$MC_BIN/mc-topo" "$T/machines" $drawn || die "see above"

# The recorded machines in every form, and as nodes that run on them.
fixtures=${MC_TEST_SHARED:-}/fixtures/topology
[ -e "$fixtures/mk_sysfs.py" ] || skip "no recorded machines at $fixtures (set MC_TEST_SHARED)"
source "$(dirname "$0")/../daemons.inc"
topo=$MC_BIN/mc-topo
is_json() { python3 -m json.tool "$T/out" >/dev/null || die "$1: not JSON"; }
all_forms() {  # NAME SOURCE...
  local name=$1
  shift
  for verb in show tiers matrix; do
    expect 0 "$topo" $verb "$@"
    [ -s "$T/out" ] || die "$name: $verb prints nothing"
    expect 0 "$topo" $verb "$@" --output json
    is_json "$name: $verb"
  done
  expect 0 "$topo" matrix --form reference "$@"
  is_json "$name: matrix --form reference"
  expect 0 "$topo" show --svg "$@"
  python3 -c "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])" "$T/out" || die "$name: svg"
  expect 0 "$topo" show --dot "$@"
  "$topo" check "$@" --output json >"$T/out" || [ $? = 1 ] || die "$name: check"
  is_json "$name: check"
}
for manifest in "$fixtures"/*/sysfs.txt; do
  folder=$(dirname "$manifest")
  name=$(basename "$folder")
  python3 "$fixtures/mk_sysfs.py" "$manifest" "$T/$name"
  all_forms "$name" --sysfs "$T/$name"
  expect 0 "$topo" tiers --sysfs "$T/$name" --output json
  cp "$T/out" "$T/$name.tiers"
  # hwloc, shown the same tree, finds the same GPUs below the same bridges, and the same nodes.
  tree='[.gpus[] | [.pci, .bridges]], [.numa_nodes[].numa]'
  expect 0 "$topo" show --sysfs "$T/$name" --output json
  jq -c "$tree" "$T/out" >"$T/ours"
  expect 0 env HWLOC_FSROOT="$T/$name" HWLOC_THISSYSTEM=0 "$topo" show --output json
  jq -c "$tree" "$T/out" | diff "$T/ours" - || die "$name: hwloc sees another tree"
  for xml in "$folder"/source.*.xml; do all_forms "$name as XML" --xml "$xml"; done

  launch "$name" "$MC_BIN/mc-xfer" serve --listen 127.0.0.1:0 --http 127.0.0.1:0 --size 1MiB \
    --sysfs "$T/$name"
  node=$(address "$name")
  all_forms "$name as a node" --node "$node"
  expect 0 "$topo" tiers --node "$node" --output json
  cmp "$T/out" "$T/$name.tiers" || die "$name: the node tells other tiers"
  expect 0 "$topo" diff "$T/$name" "node:$node"
  expect 0 "$topo" pair "$T/$name" "node:$node"
  expect 0 "$topo" pair "$T/$name" "node:$node" --output json
  is_json "$name: pair"
  "$topo" check --sysfs "$T/$name" --peer "node:$node" >"$T/out" || [ $? = 1 ] || die "$name: peer"
  expect 0 "$topo" show --sysfs "$T/$name" --output json
  cp "$T/out" "$T/$name.json"
  expect 0 "$topo" diff "$T/$name.json" "$T/$name"
  stop "$name"
  echo "$name: every form"
done
