#!/usr/bin/env bash
# Segments in named files outlive their process, killed or ended: what was put is read again, what
# was removed is not, damage and unknown files are found; a client that has the file mapped still does
# no harm. Several segments of one node; huge pages, or words about them.
. "$(dirname "$0")/../common.inc"
. "$(dirname "$0")/store.inc"

SEG=$T/segment
master_up --lease-ttl 100ms
a_up() { node_up a --segment "16MiB@file:$SEG" --segment 2MiB; }
holds() { store exists "$1" >/dev/null 2>&1; }
# value N FILE: of a size and content that N determines
value() { blob $((100000 + $1 * 777)) "$1" "$2"; }
# all_right WHEN: each of the values that is listed is what was put; $found: how many
all_right() {
  local listed i
  listed=" $(store ls k --output json | jq -r .key | tr '\n' ' ')" found=0
  for i in $(seq 60); do
    [[ $listed = *" k$i "* ]] || continue
    found=$((found + 1))
    expect 0 store get "k$i" --out "$T/got" --verify always
    cmp -s "$T/v$i" "$T/got" || die "k$i has other bytes $1"
  done
}

a_up
grep -q '18' <<<"$(store stat)" || die "a node of two segments: $(store stat)"
for i in $(seq 60); do
  value "$i" "$T/v$i"
  expect 0 store put "k$i" "$T/v$i"
done
expect 0 store put empty /dev/null
expect 0 store rm k7 --force
listed=$(store ls | wc -l)
for way in kill_9 stop; do
  $way a
  a_up
  all_right "after $way"
  ! holds k7 || die "what was removed is back"
  # Those that lay in the other segment, of 2 MiB, are gone; the file's are all there.
  [ $found -ge $((listed - 21)) ] || die "$found of $listed are there after $way"
  echo "after $way: $found of $listed"
done

# The master is new as well.
before=$(store ls | wc -l)
kill_9 a
kill_9 master
master_up --lease-ttl 100ms
a_up
[ "$(store ls | wc -l)" = "$before" ] || die "$(store ls | wc -l) of $before are there"
! holds k7 || die "what was removed is back"

# A client that keeps the memory mapped: a get that is stopped.
"$MC_BIN/mc-store" bench --master "$MASTER" --count 4 --for 60s --prefer a >/dev/null 2>&1 &
reader=$!
mapped() { grep -q "$SEG" "/proc/$reader/maps"; }
until_true 30 "nobody has $SEG mapped" mapped
kill -STOP $reader
kill_9 a
a_up
grep -q 'mapped by others still' "$T/a.log" || die "took the file while it was mapped: $(cat "$T/a.log")"
value 2 "$T/v"
if holds k2; then
  expect 0 store get k2 --out "$T/got" --verify always
  cmp -s "$T/v" "$T/got" || die "k2 has other bytes"
fi
kill -CONT $reader
kill -9 $reader
wait $reader 2>/dev/null || true

# Damage: a flipped byte costs one object, and is said.
before=$(store ls | wc -l)
kill_9 a
printf '\x5a' | dd of="$SEG" bs=1 seek=$((16 * 1024 * 1024 - 6000000)) conv=notrunc 2>/dev/null
a_up
left=$(store ls | wc -l)
[ "$left" -ge $((before - 1)) ] || die "a flipped byte cost $((before - left)) objects"
[ "$left" = "$before" ] || grep -q 'other bytes than were put' "$T/a.log" || die "not said"

refused() {  # WORDS FLAGS...: the node does not start, and says so
  local words=$1
  shift
  ! timeout 20 "$MC_BIN/mc-store" serve --listen 127.0.0.1:0 --http 127.0.0.1:0 --name b \
    --master "$MASTER" "$@" >"$T/out" 2>"$T/err" </dev/null || die "served $*"
  grep -q "$words" "$T/err" || die "want '$words': $(cat "$T/err")"
}
refused 'in use by another process' --segment "16MiB@file:$SEG"
kill_9 a
refused 'ask for as much' --segment "8MiB@file:$SEG"
echo precious >"$T/unknown"
refused 'holds something' --segment "1MiB@file:$T/unknown"
[ "$(cat "$T/unknown")" = precious ] || die "a file of others was written to"
cp "$SEG.index" "$T/index"
printf '\x63' | dd of="$SEG.index" bs=1 seek=8 conv=notrunc 2>/dev/null
refused 'newer version' --segment "16MiB@file:$SEG"
cp "$T/index" "$SEG.index"
printf '\x63' | dd of="$SEG.index" bs=1 seek=20 conv=notrunc 2>/dev/null
refused 'damaged' --segment "16MiB@file:$SEG"
cp "$T/index" "$SEG.index"
mv "$SEG" "$SEG.moved"
head -c 100 /dev/zero >"$SEG"
refused 'is not the file' --segment "16MiB@file:$SEG"
mv "$SEG.moved" "$SEG"

# An index that lost its end: that much less is known. A file that lost its end: the same.
truncate -s -3 "$SEG.index"
truncate -s 3000000 "$SEG"
a_up
all_right "of files that lost their ends"

# A file that is truncated under a client that has it mapped (F27): an error for the client, no signal.
"$MC_BIN/mc-store" bench --master "$MASTER" --count 4 --for 5s --prefer a >"$T/out" 2>"$T/err" &
reader=$!
until_true 30 "nobody has $SEG mapped" mapped
truncate -s 4096 "$SEG"
rc=0
wait $reader || rc=$?
[ $rc != 0 ] && [ $rc -lt 128 ] || die "a client of a truncated segment ended with $rc: $(cat "$T/err")"
kill_9 a 2>/dev/null || true # its memory is gone, and it with it

for bad in 1MiB@what 1MiB@numa=x 1MiB@fallback @file:x 0B "1MiB@file:" 1MiB@index=x; do
  refused 'segment' --segment "$bad"
done
refused 'NUMA node 999' --segment 1MiB@numa=999

# Huge pages: there are some, or the node says how to have them, or does without.
free=$(cat /sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages 2>/dev/null || echo 0)
if [ "$free" -lt 16 ]; then
  refused 'vm.nr_hugepages=' --segment 1TiB@hugepages
  node_up h --segment 16MiB@hugepages@fallback@numa=0
  grep -q 'ordinary pages are taken' "$T/h.log" || die "not said: $(cat "$T/h.log")"
else
  node_up h --segment 16MiB@hugepages
fi
value 9 "$T/v"
expect 0 store put huge "$T/v" --prefer h
expect 0 store get huge --out "$T/got" --verify always
cmp -s "$T/v" "$T/got" || die "other bytes out of huge pages"
