#!/usr/bin/env bash
# Bad input gets a clear error with the right exit status, and the daemons keep serving.
. "$(dirname "$0")/../common.inc"
. "$(dirname "$0")/store.inc"

# Nobody there.
expect 3 "$MC_BIN/mc-store" stat --master 127.0.0.1:1 --timeout 300ms
expect 3 "$MC_BIN/mc-store" get k --master 127.0.0.1:1 --timeout 300ms

master_up
# No node yet.
expect 3 store put k /dev/null
grep -q 'mc-store serve' "$T/err" || die "no remedy: $(cat "$T/err")"
node_up a --size 4MiB

# A port in use, a name in use, wrong options.
expect 3 "$MC_BIN/mc-master" --listen "$MASTER" --http 127.0.0.1:0
grep -q "$MASTER" "$T/err" || die "the port is not named: $(cat "$T/err")"
expect 3 "$MC_BIN/mc-master" --listen 127.0.0.1:0 --http "$(jq -r .http "$T/master.json")"
expect 2 "$MC_BIN/mc-master" --lease-tll 5s
grep -q 'lease-ttl' "$T/err" || die "no suggestion: $(cat "$T/err")"
expect 2 "$MC_BIN/mc-master" --lease-ttl 5
expect 2 "$MC_BIN/mc-master" --listen 0.0.0.0:0 --http 127.0.0.1:0
expect 2 "$MC_BIN/mc-master" --listen 127.0.0.1:0 --http 127.0.0.1:0 --high-watermark 1.5
expect 2 "$MC_BIN/mc-store" serve --listen 127.0.0.1:0 --http 127.0.0.1:0 --master "$MASTER" --size 100
expect 2 "$MC_BIN/mc-store" serve --listen 127.0.0.1:0 --http 127.0.0.1:0 --master "$MASTER" --call-timeout 0h
grep -q 'call-timeout 0' "$T/err" || die "the flag is not named: $(cat "$T/err")"
"$MC_BIN/mc-store" serve --listen 127.0.0.1:0 --http 127.0.0.1:0 --master "$MASTER" --name a \
  --size 4MiB --heartbeat 100ms --announce "$T/double.json" >"$T/double.log" 2>&1 </dev/null &
# shellcheck disable=SC2034,SC2154 # read by the sourced files
PIDS[double]=$!
until_true 30 "a second node of one name was not refused" grep -q "in use" "$T/double.log"
[ ! -e "$T/double.json" ] || die "a second node of one name became ready"
stop double

# Keys.
long=$(printf 'x%.0s' $(seq 1025))
expect 2 store put "$long" /dev/null
expect 2 store get "$long"
expect 2 store exists ''
expect 0 store put "${long:1}" /dev/null
expect 0 store exists "${long:1}"
expect 1 store put k "$T/no-such-file"
# A value that comes through a pipe, whose writer comes late.
mkfifo "$T/pipe"
store put piped "$T/pipe" >/dev/null & putting=$!
printf later >"$T/pipe"
wait $putting || die "a value from a pipe was not put"
[ "$(store get piped)" = later ] || die "what came through a pipe is '$(store get piped)'"
expect 1 store get nobody
expect 1 store rm nobody
expect 0 store put $'tab\tand \xc3\xa9' /dev/null
expect 0 store ls tab

# Bytes that are no messages, at the control port and the pages.
port=${MASTER##*:}
head -c 4096 /dev/urandom >"$T/noise"
(exec 3<>"/dev/tcp/127.0.0.1/$port" && cat "$T/noise" >&3) 2>/dev/null || true
expect 22 curl -fsS "${STATE%/state}/nothing"
expect 0 store stat

# A cluster with a key serves only those who know it.
stop a
stop master
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$T/key"
chmod 600 "$T/key"
MASTER=127.0.0.1:0
master_up --cluster-key "$T/key"
node_up b --size 4MiB --cluster-key "$T/key"
expect 3 store stat --timeout 500ms
grep -q 'same cluster key' "$T/err" || die "no hint at the key: $(cat "$T/err")"
expect 0 store put k "$T/key" --cluster-key "$T/key"
expect 0 store get k --out "$T/back" --cluster-key "$T/key"
cmp "$T/key" "$T/back"
chmod 644 "$T/key"
expect 1 store stat --cluster-key "$T/key"
