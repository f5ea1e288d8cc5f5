#!/usr/bin/env bash
# The README's tour does what it shows: every `$ ` line of its sh blocks runs, in order and in one
# shell, and prints the lines under it. Numbers, spaces and the temporary folder may differ; nothing
# else may.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"
for tool in curl jq; do
  command -v $tool >/dev/null || skip "$tool is missing: apt-get install $tool"
done

# A checkout of its own, whose build is the one under test.
mkdir -p "$T/repo/build" "$T/tmp" "$T/home" "$T/steps"
ln -s "$MC_SOURCE"/{scripts,configs,README.md} "$T/repo/"
ln -s "$MC_BIN" "$T/repo/build/release"
unset MC_BIN
trace=${MC_TEST_SHARED:-}/traces/conversation_trace.jsonl
[ ! -e "$trace" ] || ln -s "$trace" "$T/repo/"
export TMPDIR=$T/tmp HOME=$T/home
export MC_XFER_HTTP=127.0.0.1:0  # its default may be taken here
unset MC_LOOPBACK_DIR
readme_down() {
  "$MC_SOURCE/scripts/loopback" down --bin "$T/repo/build/release" || true
  rm -rf "$T"
}
trap readme_down EXIT

# steps/N.run and steps/N.want: a command and what the README shows under it.
awk -v to="$T/steps/" '
  /^## / { tour = /^## A tour/ }
  !tour { next }
  /^```/ { sh = /^```sh$/; next }
  sh && /^\$ / { ++n; print substr($0, 3) >(to n ".run"); printf "" >(to n ".want"); next }
  sh && n { print >(to n ".want") }' "$MC_SOURCE/README.md"
steps=$(find "$T/steps" -name '*.run' | wc -l)
[ "$steps" -ge 10 ] || die "README.md has a tour of only $steps commands"

# The port that the README names may be taken here.
port=$(free_port)
{
  # The running shell expands these.
  # shellcheck disable=SC2016
  echo 'trap '\''kill $(jobs -p) 2>/dev/null'\'' EXIT'
  for ((i = 1; i <= steps; ++i)); do
    printf 'exec >%q 2>&1\n' "$T/steps/$i.out"
    if grep -q conversation_trace "$T/steps/$i.run" && [ ! -e "$T/repo/conversation_trace.jsonl" ]; then
      echo "exec >&- 2>&-; echo absent >$T/steps/$i.rc"
      continue
    fi
    sed "s/:5600\b/:$port/g" "$T/steps/$i.run"
    printf 'echo $? >%q\n' "$T/steps/$i.rc"
  done
} >"$T/session"
(cd "$T/repo" && timeout 200 bash "$T/session" </dev/null) || true

alike() { sed -E "s#$T/tmp#/tmp#g; s/[0-9]+([.,][0-9]+)*/N/g; s/ +/ /g; s/ \$//" "$1"; }
for ((i = 1; i <= steps; ++i)); do
  command=$(cat "$T/steps/$i.run")
  rc=$(cat "$T/steps/$i.rc" 2>/dev/null) || die "README: '$command' did not finish: $(cat "$T/steps/$i.out")"
  if [ "$rc" = absent ]; then
    echo "not run, no recorded trace (set MC_TEST_SHARED): $command"
    continue
  fi
  [ "$rc" = 0 ] || die "README: '$command' exited $rc: $(cat "$T/steps/$i.out")"
  alike "$T/steps/$i.want" >"$T/want"
  alike "$T/steps/$i.out" >"$T/got"
  if [[ $command = */mc-topo* ]]; then  # of a machine that is not the README's, its first line
    sed -i '2,$d' "$T/want" "$T/got"
  fi
  diff "$T/want" "$T/got" >"$T/diff" || die "README: '$command' prints (>) other than shown (<):"$'\n'"$(cat "$T/diff")"
done
echo "$steps commands"
