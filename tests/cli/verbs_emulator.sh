#!/usr/bin/env bash
# The emulated verbs library under clients that nobody here wrote: Debian's ibverbs-utils and
# perftest, as they are installed.
. "$(dirname "$0")/../common.inc"
emulator=$MC_BIN/verbs-emulator/verbs-emulator
[ -x "$emulator" ] || skip "built without libibverbs-dev: apt-get install libibverbs-dev, configure again"

# ---- the command refuses what it does not understand, and says what it wants
unset VERBS_EMU_FABRIC
expect 2 "$emulator" show
grep -q 'give --fabric FILE or set VERBS_EMU_FABRIC' "$T/err" || die "$(cat "$T/err")"
expect 2 "$emulator" --fabric "$T/none" show
grep -q "$T/none: No such file.*verbs-emulator create" "$T/err" || die "$(cat "$T/err")"
echo junk >"$T/junk"
expect 2 "$emulator" --fabric "$T/junk" show
grep -q 'not a fabric of this version' "$T/err" || die "$(cat "$T/err")"
expect 2 "$emulator" --fabric "$T/f" create hosts=9 nics=9
grep -q '1 to 64 NICs' "$T/err" || die "$(cat "$T/err")"

export VERBS_EMU_FABRIC=$T/fabric
expect 0 "$emulator" create nics=2
expect 2 "$emulator" port 0:emu9 down
grep -q "no NIC '0:emu9'" "$T/err" || die "$(cat "$T/err")"
expect 2 "$emulator" rule explode
expect 0 "$emulator" rule error=remote-access op=write count=3
expect 0 "$emulator" show
grep -q '^3 1:emu1 infiniband up ' "$T/out" || die "$(cat "$T/out")"
grep -q '^rule 1 error hits 0 left 3' "$T/out" || die "$(cat "$T/out")"
expect 0 "$emulator" unrule 1

for tool in ibv_devinfo ibv_rc_pingpong ib_write_bw; do
  command -v $tool >/dev/null ||
    skip "no $tool: apt-get install ibverbs-utils perftest (or scripts/setup)"
done
export LD_LIBRARY_PATH=$MC_BIN/verbs-emulator

# ---- ibverbs-utils
expect 0 ibv_devices
[ "$(grep -c ' emu[01] ' "$T/out")" = 2 ] || die "ibv_devices: $(cat "$T/out")"
expect 0 env -u VERBS_EMU_FABRIC ibv_devices
! grep -q emu "$T/out" || die "devices without a fabric: $(cat "$T/out")"
expect 0 ibv_devinfo -v
grep -q 'PORT_ACTIVE' "$T/out" || die "$(cat "$T/out")"
"$emulator" port 0:emu0 down
expect 0 ibv_devinfo -d emu0
grep -q 'PORT_DOWN' "$T/out" || die "$(cat "$T/out")"
"$emulator" port 0:emu0 up

port=$(free_port)
listening() { grep -qi ":$(printf '%04X' "$port") 0*:0000 0A" /proc/net/tcp /proc/net/tcp6; }

# pair TOOL OPTIONS...: a server on host 0 and a client on host 1; both must succeed.
pair() {
  local tool=$1 server rc=0
  shift
  VERBS_EMU_HOST=0 timeout 60 "$tool" -p "$port" "$@" >"$T/server" 2>&1 </dev/null &
  server=$!
  local deadline=$((SECONDS + 20))
  until listening || [ $SECONDS -ge $deadline ] || ! kill -0 $server 2>/dev/null; do :; done
  VERBS_EMU_HOST=1 timeout 60 "$tool" -p "$port" "$@" localhost >"$T/out" 2>&1 </dev/null || rc=$?
  wait $server || rc=$?
  [ $rc = 0 ] && return
  sed 's/^/  server: /' "$T/server" >&2
  sed 's/^/  client: /' "$T/out" >&2
  die "$tool $* exited $rc"
}

pair ibv_rc_pingpong -c -n 200
pair ibv_rc_pingpong -c -n 200 -e
pair ibv_rc_pingpong -c -n 200 -N
pair ibv_rc_pingpong -c -n 20 -s 1048576 -m 4096

# ---- perftest
pair ib_write_bw -F -n 50
pair ib_write_bw -F -n 20 -q 4 -s 262144
pair ib_read_bw -F -n 50
pair ib_send_bw -F -n 50 -e
pair ib_write_lat -F -n 50 -s 64

# ---- RoCE: addressed by GID
"$emulator" create link=ethernet
expect 0 ibv_devinfo -v
grep -q 'RoCE v2' "$T/out" || die "$(cat "$T/out")"
pair ibv_rc_pingpong -c -n 100 -g 3
pair ib_write_bw -F -n 50 -x 3

# ---- a capped NIC keeps its rate; clients see faults as errors, not hangs
"$emulator" set 0:emu0 rate=100MB
"$emulator" rule error=general op=write nic=1:emu0 skip=10 >/dev/null
VERBS_EMU_HOST=0 timeout 60 ib_write_bw -p "$port" -F -n 50 >"$T/server" 2>&1 </dev/null &
server=$!
deadline=$((SECONDS + 20))
until listening || [ $SECONDS -ge $deadline ]; do :; done
expect 1 env VERBS_EMU_HOST=1 timeout 60 ib_write_bw -p "$port" -F -n 50 localhost
grep -q 'Completion with error' "$T/out" "$T/err" || die "$(cat "$T/out" "$T/err")"
kill $server 2>/dev/null || true
wait $server || true
"$emulator" reap
expect 0 "$emulator" show
grep -q '^rule 1 error hits 1 left 0' "$T/out" || die "$(cat "$T/out")"
