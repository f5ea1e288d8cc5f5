#!/usr/bin/env bash
# Tensor-parallel ranks as processes: the answers of one process, in a pair of workers, and what
# becomes of a worker whose rank is killed, and of ranks whose worker is.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"

answers() { # NAME: greedy and sampled texts, in $T/NAME
  local i
  for i in 1 2; do
    for how in '"temperature": 0' "\"temperature\": 0.8, \"top_p\": 0.9, \"seed\": $i"; do
      curl -fsS -m 60 -H 'content-type: application/json' "$URL/v1/completions" -d "{\"model\": \"tiny\",
        \"prompt\": \"A story of many words heard again, number $i\", \"max_tokens\": 24,
        \"ignore_eos\": true, $how}" >"$T/answer.json" || die "no answer: $(cat "$T/answer.json")"
      jq -r '.choices[0].text' "$T/answer.json"
    done
  done >"$T/$1"
}
up() { cluster_up --engine cpu --block-size 16 --pool 16MiB --segment 16MiB --store 0 "$@"; }
same() { cmp "$T/one" "$T/$1" || die "$1 says something else: $(diff "$T/one" "$T/$1")"; }
pid() { jq -r .pid "$T/cluster/$1.json"; }
ranks_of() { loopback logs "$1" | sed -n 's/.*rank [0-9]* is process \([0-9]*\).*/\1/p' | tail -n 1; }
gone() { [ ! -e "/proc/$1" ] || grep -q "^State:.Z" "/proc/$1/status"; }

up --prefill 1 --decode 1
answers one
[ "$(wc -c <"$T/one")" -gt 100 ] || die "hardly any text: $(cat "$T/one")"
loopback down

processes='--tp 2 --tp-processes on'
up --prefill 2 --decode 1 --policy random --with "prefill:$processes" --with "decode:$processes"
answers ranks
same ranks

# A rank is killed: its worker says so and ends, and the other one serves.
rank=$(ranks_of p0) worker=$(pid p0)
[ -n "$rank" ] || die "p0 names no rank: $(loopback logs p0)"
kill -9 "$rank"
until_true 20 "p0 goes on without its rank" gone "$worker"
grep -q "rank 1 (process $rank) was killed by signal 9: this worker ends" <<<"$(loopback logs p0)" ||
  die "p0 says: $(loopback logs p0)"
answers other
same other

# A worker is killed: its rank ends with it. It comes back with new ones.
rank=$(ranks_of p1)
loopback kill p1
until_true 20 "the rank of a killed worker goes on" gone "$rank"
loopback restart p0
answers back
same back

# SIGTERM goes to all of a service: the worker drains and ends its rank, with status 0.
rank=$(ranks_of d0) worker=$(pid d0)
kill -TERM "$rank" "$worker"
until_true 20 "the drained worker's rank goes on" gone "$rank"
grep -q 'this worker ends' <<<"$(loopback logs d0)" && die "a drain was no drain: $(loopback logs d0)"
loopback down

# What cannot be divided, and what is no rank.
expect 2 "$MC_BIN/mc-prefill" --engine cpu --tp 3 --tp-processes on --listen 127.0.0.1:0 \
  --http 127.0.0.1:0
grep -q -- '--tp 3: want a number that divides the 2 KV heads of tiny' "$T/err" || die "says: $(cat "$T/err")"
MC_TP_RANK=nonsense expect 2 "$MC_BIN/mc-prefill" --engine cpu
grep -q 'MC_TP_RANK' "$T/err" || die "says: $(cat "$T/err")"
