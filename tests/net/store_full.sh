#!/usr/bin/env bash
# A pool without disks that is written three times over evicts, and no put that may wait for leases to end
# fails; leased, it says no-space. What holds with the default waits: store_defaults.
. "$(dirname "$0")/../common.inc"
. "$(dirname "$0")/store.inc"

master_up --lease-ttl 400ms
node_up a --size 24MiB
node_up b --size 24MiB

# Four writers, 150 MB in all, of mixed sizes, into 48 MiB.
writer() {
  local i
  for i in $(seq 30); do
    blob $(((i * 790019 + $1 * 104729) % 2400000 + 1000)) $((i * 10 + $1)) "$T/w$1"
    store put "w$1/$i" "$T/w$1" --put-wait "$(ms 10000)" >/dev/null || return 1
    store get "w$1/$i" --out "$T/r$1" --verify always || { echo "evicted at once: w$1/$i" >&2; return 1; }
    cmp "$T/w$1" "$T/r$1" || return 1
  done
}
pids=()
for w in 1 2 3 4; do
  writer $w 2>"$T/writer$w.err" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || die "a writer failed: $(cat "$T"/writer*.err)"; done
store stat --output json >"$T/stat"
jq -e '.["evicted-objects"] > 0 and .used <= .capacity' "$T/stat" >/dev/null || die "$(cat "$T/stat")"

# Larger than the pool: refused at once, naming the pool.
blob 60000000 9 "$T/big"
expect 1 store put big "$T/big"
grep -q 'pool of 48.0 MiB' "$T/err" || die "the message does not name the pool: $(cat "$T/err")"
grep -q 'no-space' "$T/err" || die "not no-space: $(cat "$T/err")"

# Everything leased, and the lease outlives the wait: no-space after the bounded wait.
stop b
stop a
stop master
# shellcheck disable=SC2034,SC2154 # read by the sourced files
MASTER=127.0.0.1:0
master_up --lease-ttl 60s
node_up c --size 4MiB
blob 3500000 1 "$T/most"
expect 0 store put held "$T/most"
expect 0 store get held --out "$T/back"
start=$SECONDS
expect 1 store put other "$T/most" --put-wait 300ms
grep -q 'leased' "$T/err" || die "the message does not say why: $(cat "$T/err")"
[ $((SECONDS - start)) -le $((20 * SLOW)) ] || die "the wait was not bounded"
expect 1 store rm held
grep -q 'leased for' "$T/err" || die "rm of a leased key: $(cat "$T/err")"
expect 0 store rm held --force
expect 0 store put other "$T/most"
