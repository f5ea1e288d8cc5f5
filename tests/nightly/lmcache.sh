#!/usr/bin/env bash
# LMCache and SGLang's storage over a real pool: the remote plugin under LMCache's own classes, McHiCache under
# SGLang's, and LMCache's server with two real vLLM servers (tests/nightly/lmcache_servers.py). About 15 minutes.
# Arguments are of: remote, sglang, servers.
source "$(dirname "$0")/../common.inc"
engines=${MC_ENGINES:-$MC_SOURCE/build/engines}
venv=$engines/lmcache-0.5.6
[ -e "$venv/ready" ] || skip "no LMCache in $engines: scripts/setup --engines lmcache makes it"
export MC_BIN MC_ENGINES=$engines PYTHONPATH=$MC_SOURCE/lib/python MC_LIBRARY=$MC_BIN/libmc.so LMCACHE_TRACK_USAGE=false \
  LMCACHE_LOG_LEVEL=ERROR PYTHONDONTWRITEBYTECODE=1
[ $# -gt 0 ] || set -- remote sglang servers
bad=0 ran=0
for part; do
  echo "== $part"
  status=0
  case $part in
    remote) "$venv/bin/python" "$MC_SOURCE/tests/nightly/lmcache_remote.py" || status=$? ;;
    sglang)
      if [ -e "$engines/sglang-0.5.23/ready" ]; then
        "$venv/bin/python" "$MC_SOURCE/tests/nightly/sglang_storage.py" "$engines/sglang-0.5.23" || status=$?
      else
        echo "no SGLang in $engines: scripts/setup --engines sglang"
        status=77
      fi ;;
    servers) python3 "$MC_SOURCE/tests/nightly/lmcache_servers.py" || status=$? ;;
    *) die "no part $part: remote, sglang, servers" ;;
  esac
  [ $status = 77 ] || ran=1
  [ $status = 0 ] || [ $status = 77 ] || bad=1
done
[ $bad = 0 ] || die "see above"
[ $ran = 1 ] || skip "nothing to run $* with in $engines: scripts/setup --engines"
