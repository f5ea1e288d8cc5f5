#!/usr/bin/env bash
# Every example of the man pages is carried out as it stands, beside daemons on their default ports in a network
# namespace of its own: it does something and says how it went, with the status that belongs to it. A few
# minutes. Arguments: only the examples that contain one of these words.
source "$(dirname "$0")/../common.inc"
[ "$(id -u)" = 0 ] || skip "network namespaces need root"
for tool in ip unshare jq xxd; do command -v $tool >/dev/null || skip "no $tool here"; done
if [ -z "${MC_EXAMPLES_INSIDE:-}" ]; then
  unshare --net true 2>/dev/null || skip "network namespaces are not permitted here"
  MC_EXAMPLES_INSIDE=1 MC_SOURCE=$MC_SOURCE MC_BIN=$MC_BIN exec unshare --net bash "$0" "$@"
fi
source "$(dirname "$0")/../daemons.inc"
ip link set lo up
export PATH=$MC_BIN:$PATH TMPDIR=$T/tmp XDG_RUNTIME_DIR=$T/run HOME=$T/home
W=$T/work
mkdir -p "$TMPDIR" "$XDG_RUNTIME_DIR" "$HOME" "$W"
cd "$W" || exit 1

# ---- what the examples name
mkdir -p docs weights incoming models
echo hello >hello.txt
cp "$MC_SOURCE"/docs/s*.md docs/
head -c 3000000 /dev/urandom >model.bin
head -c 2000000 /dev/urandom >weights/a.bin
cp -r weights models/llama
cp model.bin 2024
echo '{"tenants": [{"name": "a", "keys": ["secret-of-a"]}]}' >keys.json
chmod 600 keys.json
mc-replay synth --profile "$MC_SOURCE/configs/profiles/sample.json" --requests 60 --out trace.jsonl >/dev/null
cp trace.jsonl t.jsonl
cp trace.jsonl conversation_trace.jsonl
{
  echo TIMESTAMP,ContextTokens,GeneratedTokens
  for i in $(seq 40); do printf '2023-11-16 18:15:%02d.0000000,%d,%d\n' "$i" $((300 + i)) $((10 + i)); done
} >azure.csv
for name in a b sim; do mc-replay sim trace.jsonl --model tiny --output json >$name.json; done
mc-topo capture other >/dev/null
mc-topo capture yesterday >/dev/null
cp "$MC_SOURCE/tests/fuzz/topology/hwloc.xml" machine.xml

# ---- the daemons
launch master mc-master
launch n1 mc-store serve --name n1 --size 256MiB --listen 127.0.0.1:0 --http 127.0.0.1:0
launch n2 mc-store serve --name n2 --size 256MiB --listen 127.0.0.1:0 --http 127.0.0.1:0 --ssd ssd --ssd-size 256MiB
launch conductor mc-conductor --model tiny
launch p0 mc-prefill --model tiny --conductor 127.0.0.1:5560 --master 127.0.0.1:5550 --pool 64MiB
launch d0 mc-decode --model tiny --conductor 127.0.0.1:5560 --master 127.0.0.1:5550 --pool 64MiB
launch xfer mc-xfer serve --size 1GiB --root . --writable
launch set mc-xfer publish llama-v7 weights/ --listen 127.0.0.1:5610
until_true 30 "the cluster is not ready" curl -fsS -m 5 http://127.0.0.1:8000/ready
mc-replay run trace.jsonl --speed 4 --report live.json >/dev/null
mc-replay run trace.jsonl --concurrency 1 --report quiet.json >/dev/null
mc-store put greeting hello.txt >/dev/null
mc-store put system-prompt hello.txt >/dev/null
mc-store put block-0 hello.txt >/dev/null
mc-store put block-1 hello.txt >/dev/null

# ---- the examples: one a line, as a shell takes them
examples() { # PROGRAM
  awk '/^\.SH / { on = /EXAMPLES/; next } on && /^\\fB/ { sub(/^\\fB/, ""); sub(/\\fR$/, ""); gsub(/\\-/, "-"); gsub(/\\e/, "\\"); print }' \
    "$MC_SOURCE/man/$1.1"
}
model=${MC_TEST_SHARED:-$MC_SOURCE/../shared}/models/stories260K/hf-f32
daemon() {
  [[ $1 =~ ^mc-(master|conductor|prefill|decode)( -.*)?$ || $1 =~ ^mc-(store|xfer)\ serve || $1 =~ ^mc-xfer\ publish || $1 =~ --serve$ ]] &&
    [[ $1 != *--calibrate* ]]
}
# The statuses that may come of it, and why where it is not 0.
statuses() {
  case $1 in
    *cuda:*) command -v nvidia-smi >/dev/null && echo 0 || echo 1 2 3 ;; # no GPU here
    *'--require'*) echo 0 4 5 ;;                                         # a gate, which may be missed
    'mc-store top') echo 130 ;;                          # Ctrl-C
    'mc-store rm greeting' | 'mc-store mv '*) echo 0 1 ;; # an example before it leases or copied it
    'mc-store match block-0 block-1 block-2') echo 1 ;;
    'mc-topo diff '* | 'mc-topo check'* | 'mc-replay compare '* | 'mc-replay calibrate '* | 'mc-replay paper '*) echo 0 1 4 5 6 ;;
    *) echo 0 ;;
  esac
}
wrong=() done_n=0 skipped=0
try() {
  local example=$1 command rc=0 pid
  # What is at one place of a file system is in the folder of the test, and DIR is a model's.
  command=$(sed -E "s#/tmp/#$W/#g; s#-C /tmp#-C $W#; s#/srv/models#$W/models#; s#/mnt/nvme/mc#$W/ssd-away#; s#\bDIR\b#$model#" <<<"$example")
  if [[ $command == *"$model"* && ! -e $model ]]; then
    skipped=$((skipped + 1))
    return
  fi
  if daemon "$example"; then
    mkdir -p elsewhere && rm -f "$T/example.json" elsewhere/master.json
    local where=elsewhere own=(unshare --net bash -c)
    [[ $example != *--file* && $example != *'--root incoming'* && $example != *api-keys* && $example != *publish* ]] || where=.
    [[ $example != *pull* && $example != 'mc-store serve'* ]] || own=(bash -c)
    (
      cd $where || exit 1
      for role in MASTER CONDUCTOR PREFILL DECODE STORE XFER; do export "MC_${role}_ANNOUNCE=$T/example.json"; done
      exec "${own[@]}" "ip link set lo up; exec $command" >"$T/out" 2>&1 </dev/null
    ) &
    pid=$!
    for _ in $(seq 600); do
      if [ -s "$T/example.json" ] || [ -s elsewhere/master.json ] || ! kill -0 $pid 2>/dev/null; then break; fi
      pause_briefly
    done
    [ -s "$T/example.json" ] || [ -s elsewhere/master.json ] || rc=250
    kill -TERM $pid 2>/dev/null || true
    wait $pid || rc=$?
  elif [ "$example" = 'mc-store top' ]; then # until Ctrl-C
    timeout --preserve-status -s INT 3 bash -c "exec $command" >"$T/out" 2>&1 </dev/null || rc=$?
  else
    timeout 1200 bash -c "$command" >"$T/out" 2>&1 </dev/null || rc=$?
  fi
  done_n=$((done_n + 1))
  [[ $example != *set-role* ]] || mc-conductor set-role 127.0.0.1:5580 prefill >/dev/null
  [[ " $(statuses "$example") " == *" $rc "* ]] || wrong+=("$example: status $rc: $(tail -n 3 "$T/out")")
}
for program in mc-master mc-conductor mc-prefill mc-decode mc-store mc-xfer mc-topo mc-replay; do
  while read -r example; do
    [ $# = 0 ] || [[ $example == *$1* ]] || continue
    try "$example"
  done < <(examples $program)
done
[ ${#wrong[@]} = 0 ] || { printf '%s\n' "${wrong[@]}" >&2; die "${#wrong[@]} of $done_n examples"; }
[ $done_n -ge 100 ] || [ $# -gt 0 ] || die "only $done_n examples were found"
echo "$done_n examples, $skipped without a model"
