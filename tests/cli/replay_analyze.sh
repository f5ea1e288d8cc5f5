#!/usr/bin/env bash
# mc-replay analyze: what it says of good, broken and missing traces.
. "$(dirname "$0")/../common.inc"
replay=$MC_BIN/mc-replay
[ -x "$replay" ] || skip "mc-replay is not built in $MC_BIN"

cat >"$T/t.jsonl" <<'L'
{"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 0, "input_length": 1025, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 1500, "input_length": 1024, "output_length": 6, "hash_ids": [0, 1]}
L
expect 0 "$replay" analyze "$T/t.jsonl"
grep -q '^requests   3 in 1.500 s' "$T/out" || die "$(cat "$T/out")"
expect 2 "$replay" analyze "$T/t.jsonl" --trace "$T/other.jsonl"
grep -q "two traces, $T/t.jsonl and --trace $T/other.jsonl: leave one out" "$T/err" || die "$(cat "$T/err")"
expect 0 "$replay" analyze --trace "$T/t.jsonl" --output json --cache-tokens inf --capacities 512,1K
python3 - "$T/out" <<'PY' || die "analyze --output json is not what it should be"
import json, sys
a = json.load(open(sys.argv[1]))
assert (a['requests'], a['stamps'], a['blocks']['total'], a['blocks']['full']) == (3, 2, 7, 6), a
assert a['infinite']['hit_blocks'] == 4 and a['infinite']['hit_full_blocks'] == 4, a
assert [p['capacity_blocks'] for p in a['lru']] == [1, 1], a
# The third prompt is all cached, but its last block must be computed for a first token.
assert a['prediction']['hit_blocks'] == 3 and a['prediction']['hit_tokens'] == 1536, a
PY

# Other eviction orders, and local caches by routing rule.
expect 0 "$replay" analyze "$T/t.jsonl" --output json --eviction all --capacities 512,2K --route-nodes 2
python3 - "$T/out" <<'PY' || die "--eviction or --route-nodes is not what it should be"
import json, sys
a = json.load(open(sys.argv[1]))
assert set(a['orders']) == {'lfu', 'fifo', 'sieve', 's3-fifo', 's3-fifo-0', 'opt'}, a['orders']
for name, points in a['orders'].items():
    assert [p['hit_blocks'] for p in points] == [2, 4], (name, points)
rules = a['routing']['rules']
assert rules['pool']['hit_blocks'] == 4 and rules['longest']['hit_blocks'] == 4, rules
assert rules['longest']['black_hole'] and 'go to one of 2 nodes' in a['routing']['explanation']
assert 'block_rate' in a['definitions']
PY
expect 2 "$replay" analyze "$T/t.jsonl" --eviction mru
grep -q "no eviction order 'mru'; there are: lru lfu" "$T/err" || die "$(cat "$T/err")"
expect 2 "$replay" analyze "$T/t.jsonl" --route-nodes 1000

# Malformed lines: skipped, counted and explained; refused when strict.
cp "$T/t.jsonl" "$T/bad.jsonl"
cat >>"$T/bad.jsonl" <<'L'
not json
{"timestamp": 1600, "input_length": 1024, "output_length": 6, "hash_ids": [0]}
{"timestamp": 10, "input_length": 1, "output_length": 6, "hash_ids": [9]}
L
expect 0 "$replay" analyze "$T/bad.jsonl"
grep -q '6 lines, 2 malformed, 1 out of order' "$T/out" || die "$(cat "$T/out")"
grep -q 'line 4: not JSON at column' "$T/out" || die "$(cat "$T/out")"
grep -q 'line 5: 1 hash_ids for input_length 1024: want 2' "$T/out" || die "$(cat "$T/out")"
grep -q "$T/bad.jsonl: skipped 2 malformed lines; the first is line 4" "$T/err" || die "$(cat "$T/err")"
expect 2 "$replay" analyze --strict "$T/bad.jsonl"
grep -q "$T/bad.jsonl:4: not JSON" "$T/err" || die "$(cat "$T/err")"
expect 0 "$replay" analyze --strict --limit 3 "$T/bad.jsonl"

# What cannot be read at all.
expect 1 "$replay" analyze "$T/absent.jsonl"
grep -q "$T/absent.jsonl: No such file" "$T/err" || die "$(cat "$T/err")"
: >"$T/empty.jsonl"
expect 2 "$replay" analyze "$T/empty.jsonl"
grep -q 'holds no requests' "$T/err" || die "$(cat "$T/err")"
head -c 100000 /dev/zero >"$T/zeros.jsonl"
expect 2 "$replay" analyze "$T/zeros.jsonl"
expect 2 "$replay" analyze "$T"
expect 2 "$replay" analyze
expect 2 "$replay" analyze "$T/t.jsonl" --capacities many
grep -q "'many' is not a number of tokens" "$T/err" || die "$(cat "$T/err")"
expect 2 "$replay" analyze "$T/t.jsonl" --cache-tokens 1M --cluster-block 500
expect 2 "$replay" analyze "$T/t.jsonl" --cache-tokens 1M --nodes 0
expect 2 "$replay" analyze "$T/t.jsonl" --block 0
for n in 0 -1 2.5 many; do
  expect 2 "$replay" analyze "$T/t.jsonl" --route-nodes $n
done

trace=${MC_TEST_SHARED:-}/traces/conversation_trace.jsonl
[ -e "$trace" ] || skip "no recorded trace at $trace (set MC_TEST_SHARED)"
expect 0 "$replay" analyze "$trace" --strict --output json
python3 - "$T/out" <<'PY' || die "the recorded trace is not what is published"
import json, sys
a = json.load(open(sys.argv[1]))
assert a['requests'] == 12031 and a['blocks']['distinct'] == 182790 and a['roots'] == 7373
assert a['infinite']['hit_blocks'] == 105710 and a['infinite']['hit_tokens'] == 54098411
assert round(a['infinite']['full_block_rate'], 4) == 0.3819
assert [p['hit_blocks'] for p in a['lru']] == [12084, 12205, 15370, 39258, 82273, 103511, 104870, 105710]
PY
