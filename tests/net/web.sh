#!/usr/bin/env bash
# Who may ask a conductor for what: web pages of other sites, clients of a proxy on its host, peers that
# never finish a request, and everybody beyond loopback where there are no keys.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/../daemons.inc"

# F118, F120
expect 2 "$MC_BIN/mc-conductor" --listen 127.0.0.1:0 --http 0.0.0.0:0
grep -q 'beyond loopback, without --api-keys' "$T/err" || die "no reason: $(cat "$T/err")"
echo '{"tenants":[{"name":"a","keys":["key-of-a"]}]}' >"$T/keys.json"
chmod 644 "$T/keys.json"
expect 2 "$MC_BIN/mc-conductor" --listen 127.0.0.1:0 --http 127.0.0.1:0 --api-keys "$T/keys.json"
grep -q 'keys.json may be read by others' "$T/err" || die "no reason: $(cat "$T/err")"

launch conductor "$MC_BIN/mc-conductor" --listen 127.0.0.1:0 --http 127.0.0.1:0 --model tiny \
  --admin-socket "$T/admin.sock" --log-level warn
[ "$(stat -c %a "$T/admin.sock")" = 600 ] || die "others may ask over the admin socket"
http=$(jq -r .http "$T/conductor.json")
python3 "$MC_SOURCE/tests/net/web.py" "$http" "$T/admin.sock" || die "see above"

# As many connections as this machine allows, and more than the conductor has slots for.
n=4200 allowed=$(ulimit -Hn)
[ "$allowed" = unlimited ] || [ "$allowed" -ge $((n + 600)) ] || n=$((allowed - 600))
slots=4096
[ $n = 4200 ] || slots=$((n - 100))
stop conductor
launch conductor "$MC_BIN/mc-conductor" --listen 127.0.0.1:0 --http 127.0.0.1:0 --model tiny \
  --http-connections "$slots" --admin-socket none --log-level warn
http=$(jq -r .http "$T/conductor.json")
ulimit -Sn $((n + 600))
python3 "$MC_SOURCE/tests/net/web.py" "$http" flood "$n" || die "see above"
stop conductor
