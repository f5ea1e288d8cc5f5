#!/usr/bin/env bash
# F101: a conductor that has no memory for a client's text refuses it and goes on.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/../daemons.inc"
[ -z "${MC_SANITIZE:-}" ] || skip "a sanitizer reserves address space of its own"
launch conductor "$MC_BIN/mc-conductor" --listen 127.0.0.1:0 --http 127.0.0.1:0 --model tiny
url=http://$(jq -r .http "$T/conductor.json")
pid=${PIDS[conductor]}
ask() { curl -sS -m 60 -H 'content-type: application/json' -o "$T/answer" -w '%{http_code}' "$url$1" "${@:2}"; }
python3 -c 'print("{\"tokens\":[" + ",".join(["65"] * 1000000) + "]}")' >"$T/body" # 3 MB; 25 MB while they are parsed
held=$(awk '/^VmSize/ { print $2 * 1024 }' "/proc/$pid/status")
prlimit --pid "$pid" --as=$((held + (16 << 20))):unlimited
code=$(ask /detokenize -d @"$T/body")
[ "$code" = 503 ] || die "without memory: $code, $(cat "$T/answer")"
grep -q "no memory" "$T/answer" || die "the error does not say why: $(cat "$T/answer")"
[ "$(ask /live)" = 200 ] || die "it does not live any more"
prlimit --pid "$pid" --as=unlimited:unlimited
[ "$(ask /detokenize -d @"$T/body")" = 200 ] || die "with memory again: $(cat "$T/answer")"
