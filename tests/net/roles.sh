#!/usr/bin/env bash
# Workers that are both say what a prefill and a decode worker say; told to be another, they finish
# what they have, join again as that, and the cluster goes on serving.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"

ask() { # PROMPT TOKENS -> its text; several at a time
  local answer=$T/answer.$BASHPID
  jq -cn --arg model "$model" --arg prompt "$1" --argjson n "$2" \
    '{model: $model, prompt: $prompt, max_tokens: $n, temperature: 0, ignore_eos: true}' |
    curl -fsS -m 120 -H 'content-type: application/json' -d @- "$URL/v1/completions" >"$answer" ||
    die "no answer: $(cat "$answer")"
  jq -r '.choices[0].text' "$answer"
}
ask_all() { # NAME: answers in $T/NAME
  local i
  for i in 1 2 3 4 5 6; do
    # No two begin alike: no worker fetches a prefix from the other.
    ask "$i times a worker that does everything itself tells a story of many words" 30
  done >"$T/$1"
}
up() {
  cluster_up --engine cpu --block-size 16 --pool 16MiB --segment 16MiB "$@"
  model=$(curl -fsS "$URL/v1/models" | jq -r '.data[0].id')
}
role() { # WORKER ROLE
  "$MC_BIN/mc-conductor" set-role "$(jq -r .control "$T/cluster/$1.json")" "$2" \
    --cluster-key "$T/cluster/cluster.key" --output json --url "${3:-$URL}"
}
nodes() { # what the conductor knows: NAME:ROLE, sorted, but for the draining
  curl -fsS "$URL/cluster" |
    jq -r '[.nodes[] | select(.draining | not) | .name + ":" + .role] | sort | join(" ")'
}
are() { [ "$(nodes)" = "$1" ]; }
moved() { # bytes of KV that b0 and b1 sent
  for worker in b0 b1; do curl -fsS "http://$(jq -r .http "$T/cluster/$worker.json")/metrics"; done |
    awk '/^mc_engine_kv_transfer_bytes_total/ { n += $2 } END { print n + 0 }'
}

up --prefill 1 --decode 1 --store 0
ask_all apart
loopback down
up --both 2 --store 1 --with "prefill:--trace-events $T/trace.json"
are "b0.d:decode b0:prefill b1.d:decode b1:prefill" || die "the conductor knows $(nodes)"
ask_all both
cmp "$T/apart" "$T/both" || die "workers that are both say something else"
[ "$(moved)" = 0 ] || die "KV moved between the halves of one process"

role b0 prefill | jq -e '.was == "both" and .will_be == "prefill" and .warning == null' >/dev/null || die "set-role"
role b1 decode >/dev/null
until_true 30 "roles did not change: $(nodes)" are "b0:prefill b1:decode"
ask_all changed
cmp "$T/apart" "$T/changed" || die "after the change they say something else"
[ "$(moved)" -gt 0 ] || die "no KV moved from b0 to b1"

# In the middle of answers: those finish, then the roles are exchanged.
for i in 1 2 3 4; do
  ask "A long answer, number $i" 600 >"$T/long$i" &
done
given() { # requests that the decode worker answers; before that a draining one sends them away
  curl -fsS "http://$(jq -r .http "$T/cluster/b1.json")/metrics" |
    awk '/^vllm:num_requests_running.*decode/ { n = $2 } END { print n + 0 }'
}
all_given() { [ "$(given)" = 4 ]; }
until_true 30 "b1 answers $(given) of 4 requests" all_given
role b0 decode >"$T/set" 2>"$T/err"
jq -e '.warning == "b0 is the last prefill worker"' "$T/set" >/dev/null || die "no warning: $(cat "$T/set")"
grep -q 'warning conductor: b0 is the last prefill worker: ' "$T/err" || die "no warning: $(cat "$T/err")"
role b1 prefill http://127.0.0.1:1 >"$T/set" 2>"$T/err"
jq -e '.will_be == "prefill" and .warning == null' "$T/set" >/dev/null || die "without a conductor: $(cat "$T/set")"
grep -q 'not known: http://127.0.0.1:1: .*(--url)' "$T/err" || die "without a conductor: $(cat "$T/err")"
wait
for i in 1 2 3 4; do [ -s "$T/long$i" ] || die "answer $i was cut"; done
until_true 30 "roles were not exchanged: $(nodes)" are "b0:decode b1:prefill"
ask_all exchanged
cmp "$T/apart" "$T/exchanged" || die "after the exchange they say something else"
expect 2 "$MC_BIN/mc-conductor" set-role 127.0.0.1:1
expect 2 "$MC_BIN/mc-conductor" set-role "$(jq -r .control "$T/cluster/b0.json")" hermit \
  --cluster-key "$T/cluster/cluster.key"
grep -q hermit "$T/err" || die "the refusal does not name the role: $(cat "$T/err")"

# Told to end, a worker finishes what it has, and writes down what it did.
kill -TERM "$(cat "$T/cluster/b0.pid")"
# (At its start it wrote one without events, to find out whether it can.)
tracks() { jq -r '[.traceEvents[] | select(.ph == "X") | .cat] | unique | .[]' "$T/trace.json"; }
written() { [ -n "$(tracks)" ]; }
until_true 30 "no trace is written" written
for track in compute decode request; do
  grep -qx "$track" <<<"$(tracks)" || die "no $track in the trace, only $(tracks | paste -sd ' ')"
done
