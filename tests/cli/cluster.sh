#!/usr/bin/env bash
# scripts/cluster against services made of shell, on this machine.
. "$(dirname "$0")/../common.inc"
command -v jq >/dev/null || skip "jq is missing: apt-get install jq"
cluster() { "$MC_SOURCE/scripts/cluster" "$@"; }
trap 'cluster down -f "$T/cluster.json" >/dev/null 2>&1 || true; rm -rf "$T"' EXIT

# A service that announces itself, notes its arguments and ends at SIGTERM.
mkdir "$T/bin"
cat >"$T/bin/fake" <<'SH'
#!/bin/bash
trap 'echo drained; exit 0' TERM
echo "args: $* colour: ${COLOUR:-none}"
while [ $# -gt 1 ]; do
  [ "$1" = --name ] && name=$2
  [ "$1" = --announce ] && file=$2
  shift
done
[ "$name" = broken ] && { echo "cannot start today"; exit 1; }
[ "$name" = mute ] || { echo '{"name":"'"$name"'","control":"127.0.0.1:1","http":"127.0.0.1:2"}' >"$file.tmp"
  mv "$file.tmp" "$file"; }
tail -f /dev/null --pid=$$ & wait  # until killed, whichever way
SH
chmod +x "$T/bin/fake"
cat >"$T/cluster.json" <<JSON
// Two services; the second wants to know where the first is.
{
  "name": "test", "bin": "$T/bin", "run": "$T/run", "cluster-key": "$T/run/key", "start-seconds": 20,
  "services": [
    {"name": "one", "program": "fake", "args": ["--name", "one", "two words"]},
    {"name": "two", "program": "fake serve", "env": {"COLOUR": "deep blue"},
     "args": ["--name", "two", "--peer", "tcp://{one.control}/{one.http}"]}
  ]
}
JSON
cat >"$T/broken.json" <<JSON
{"name": "test", "bin": "$T/bin", "run": "$T/run2", "start-seconds": 1, "services": [
  {"name": "ok", "program": "fake", "args": ["--name", "ok"]},
  {"name": "BAD", "program": "fake", "args": ["--name", "BAD"]}]}
JSON

expect 3 cluster status -f "$T/cluster.json"
expect 0 cluster up -f "$T/cluster.json"
expect 0 cluster status -f "$T/cluster.json" --output json
[ "$(jq -r '.name + " " + .state + " " + .control' "$T/out" | tr '\n' ,)" = \
  'one running 127.0.0.1:1,two running 127.0.0.1:1,' ] || die "status: $(cat "$T/out")"
[ "$(stat -c %a "$T/run/key")" = 600 ] || die "others may read the cluster's key"
pid=$(jq -r 'select(.name == "two").pid' "$T/out")
expect 0 cluster logs two -f "$T/cluster.json"
grep -q 'args: serve --name two --peer tcp://127.0.0.1:1/127.0.0.1:2 --cluster-key .*/key --announce .* colour: deep blue' \
  "$T/out" || die "arguments: $(cat "$T/out")"
expect 0 cluster up -f "$T/cluster.json"  # again: nothing to do
expect 0 cluster restart two -f "$T/cluster.json"
expect 0 cluster status -f "$T/cluster.json" --output json
[ "$(jq -r 'select(.name == "two").pid' "$T/out")" != "$pid" ] || die "restart kept the process"
expect 0 cluster logs two -f "$T/cluster.json"
grep -qx drained "$T/out" || die "restart did not let the service drain"
kill -9 "$(jq -r 'select(.name == "one").pid' <("$MC_SOURCE/scripts/cluster" status -f "$T/cluster.json" --output json))"
expect 3 cluster status -f "$T/cluster.json"
grep -q '^one .*stopped' "$T/out" || die "a killed service is not seen: $(cat "$T/out")"
expect 0 cluster down -f "$T/cluster.json"
expect 3 cluster status -f "$T/cluster.json"

# Over ssh, here a stand-in that runs the words as the remote shell would.
cat >"$T/bin/ssh" <<'SH'
#!/bin/bash
while [[ $1 = -* ]]; do shift 2; done
[ "$1" != unreachable ] || exit 255
shift
exec bash -c "$*"
SH
chmod +x "$T/bin/ssh"
sed 's/"program": "fake"/"host": "mc@far", &/; /cluster-key/s/"cluster-key": "[^"]*",//' \
  "$T/cluster.json" >"$T/far.json"
expect 0 env PATH="$T/bin:$PATH" "$MC_SOURCE/scripts/cluster" up -f "$T/far.json"
expect 0 env PATH="$T/bin:$PATH" "$MC_SOURCE/scripts/cluster" logs one -f "$T/far.json"
grep -q 'args: --name one two words --announce' "$T/out" || die "words over ssh: $(cat "$T/out")"
expect 0 env PATH="$T/bin:$PATH" "$MC_SOURCE/scripts/cluster" logs two -f "$T/far.json"
grep -q -- '--peer tcp://far:1/far:2' "$T/out" || die "no endpoint of the other host: $(cat "$T/out")"
expect 0 env PATH="$T/bin:$PATH" "$MC_SOURCE/scripts/cluster" down -f "$T/far.json"
sed 's/mc@far/unreachable/' "$T/far.json" >"$T/lost.json"
expect 3 env PATH="$T/bin:$PATH" "$MC_SOURCE/scripts/cluster" status -f "$T/lost.json"
grep -q '^one  *unreachable  *unreachable' "$T/out" || die "$(cat "$T/out")"
expect 1 env PATH="$T/bin:$PATH" "$MC_SOURCE/scripts/cluster" up -f "$T/lost.json"

# A service that fails to start, or never announces itself, ends `up` with its last words.
sed 's/BAD/broken/g' "$T/broken.json" >"$T/b.json"
expect 1 cluster up -f "$T/b.json"
grep -q 'cannot start today' "$T/err" || die "$(cat "$T/err")"
expect 0 cluster down -f "$T/b.json"
sed 's/BAD/mute/g' "$T/broken.json" >"$T/b.json"
expect 1 cluster up -f "$T/b.json"
grep -q 'mute did not announce itself within 1 s' "$T/err" || die "$(cat "$T/err")"
expect 0 cluster down -f "$T/b.json"

# Bad input.
expect 2 cluster up
expect 2 cluster fly -f "$T/cluster.json"
expect 2 cluster up -f "$T/absent.json"
expect 2 cluster up -f "$T/cluster.json" three
grep -q 'lists no service three; it has: one two' "$T/err" || die "$(cat "$T/err")"
for bad in '{' '[]' '{"services": []}' '{"servces": [{"name": "a", "program": "x"}]}' \
  '{"services": [{"name": "a b", "program": "x"}]}' '{"services": [{"name": "a"}]}' \
  '{"services": [{"name": "a", "program": "x"}, {"name": "a", "program": "x"}]}' \
  '{"services": [{"name": "a", "program": "x", "arg": []}]}' \
  '{"start-seconds": "1", "services": [{"name": "a", "program": "x"}]}'; do
  echo "$bad" >"$T/bad.json"
  expect 2 cluster up -f "$T/bad.json"
done
echo '{"run": "'"$T"'/run3", "services": [{"name": "a", "program": "/absent/mc-master"}]}' >"$T/bad.json"
expect 1 cluster up -f "$T/bad.json"
grep -q 'no program /absent/mc-master' "$T/err" || die "$(cat "$T/err")"
