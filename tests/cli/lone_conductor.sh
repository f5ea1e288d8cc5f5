#!/usr/bin/env bash
# A conductor before anything has happened: what it counts is there with 0, and of an external engine
# that is not up it says so, by name. A list of engines with a spelling mistake is refused.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/../daemons.inc"
[ -x "$MC_BIN/mc-conductor" ] || skip "mc-conductor is not built"
free=(--listen 127.0.0.1:0 --http 127.0.0.1:0)
nobody=http://127.0.0.1:$(free_port)

echo '[{"instance_id": "e1", "url": "'"$nobody"'", "modelnam": "org/model"}]' >"$T/engines.json"
expect 2 timeout -k 1 20 "$MC_BIN/mc-conductor" "${free[@]}" --foreign-engines "$T/engines.json"
grep -qF "$T/engines.json: engine 0: unknown member 'modelnam': did you mean modelname?" "$T/err" ||
  die "the mistake is not named: $(cat "$T/err")"

sed -i s/modelnam/modelname/ "$T/engines.json"
launch conductor "$MC_BIN/mc-conductor" "${free[@]}" --foreign-engines "$T/engines.json"
url=http://$(jq -r .http "$T/conductor.json")
curl -fsS "$url/metrics" >"$T/metrics"
for series in 'placed_workers_total{role="prefill"}' 'moved_workers_total{role="decode"}' \
  'dismissed_workers_total{role="prefill"}' 'pd_decisions_total{move="none"}' \
  'tx_total{op="reserve",result="failed"}' 'engine_ejections_total{engine="e1"}' retries_total; do
  grep -qxF "mc_conductor_$series 0" "$T/metrics" || die "no mc_conductor_$series 0"
done

refuses() { # WHAT: /ready says it
  curl -sS "$url/ready" >"$T/ready"
  grep -qF "$1" "$T/ready"
}
until_true 20 "/ready does not say which engine is down" refuses "no external engine is up: e1: connect"
ask() { curl -sS "$url/v1/completions" --json '{"model": "tiny", "prompt": "a", "max_tokens": 1}'; }
ask | jq -e '.error.code == "no_capacity" and
  .error.message == "no external engine of this model is usable: e1"' >/dev/null || die "503 says: $(ask)"

# A conductor without engines speaks of workers.
launch bare "$MC_BIN/mc-conductor" "${free[@]}"
url=http://$(jq -r .http "$T/bare.json")
refuses 'no prefill worker' || die "/ready says: $(cat "$T/ready")"
ask | jq -e '.error.message | contains("neither a prefill node nor an external engine")' >/dev/null || die "503 says: $(ask)"
stop bare
stop conductor
