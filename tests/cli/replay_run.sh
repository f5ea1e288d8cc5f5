# mc-replay run: what it refuses before it sends anything, and how it exits.
. "$(dirname "$0")/../common.inc"
replay=$MC_BIN/mc-replay
echo '{"timestamp": 0, "input_length": 10, "output_length": 2, "hash_ids": [0]}' >"$T/trace.jsonl"
nobody=http://127.0.0.1:1

said() { grep -qF -- "$1" "$T/err" || die "stderr lacks '$1': $(cat "$T/err")"; }

# No server: it waits as long as asked, then says what it saw.
expect 3 "$replay" run "$T/trace.jsonl" --url $nobody --wait-ready 200ms
said "$nobody is not ready after 200ms: connect to 127.0.0.1:1: Connection refused"
[ ! -s "$T/out" ] || die "a report without a run: $(cat "$T/out")"

# Wrong words, found before the server is asked.
expect 2 "$replay" run --url $nobody
said 'no trace'
expect 2 "$replay" run "$T/trace.jsonl" --url $nobody --sped 2
said speed
expect 2 "$replay" run "$T/trace.jsonl" --url $nobody --speed -1
said --speed
expect 2 "$replay" run "$T/trace.jsonl" --url $nobody --arrival sometimes
said "arrival 'sometimes'"
expect 2 "$replay" run "$T/trace.jsonl" --url $nobody --arrival poisson
said --qps
expect 2 "$replay" run "$T/trace.jsonl" --url $nobody --window 5:1
said window
expect 2 "$replay" run "$T/trace.jsonl" --url $nobody --require 'speed of light'
said 'speed of light'
expect 2 "$replay" run "$T/trace.jsonl" --url $nobody --prompt voice
expect 2 "$replay" run "$T/trace.jsonl" --url $nobody --timeout 5
expect 2 "$replay" run "$T/trace.jsonl" --url $nobody --report run.html
expect 2 "$replay" run "$T/trace.jsonl" --url https://127.0.0.1:1
said 'http://host:port'

# Traces that are not there, or not traces.
expect 1 "$replay" run "$T/absent.jsonl" --url $nobody
said absent.jsonl
echo nonsense >"$T/bad.jsonl"
expect 2 "$replay" run "$T/bad.jsonl" --url $nobody
said bad.jsonl

# Told to end while it waits (or before it is even up: 143), it ends at once.
"$replay" run "$T/trace.jsonl" --url $nobody --wait-ready 60s 2>"$T/err" &
pid=$!
kill -TERM $pid
status=0
wait $pid || status=$?
[ $status = 1 ] || [ $status = 143 ] || die "interrupted: exit $status"
