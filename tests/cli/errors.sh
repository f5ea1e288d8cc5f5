#!/usr/bin/env bash
# Bad input to every program gets a message that names the thing and the remedy, and the right status.
source "$(dirname "$0")/../common.inc"
# A daemon that takes what it should refuse would serve for ever.
refused() { expect "$1" timeout -k 1 20 "${@:2}"; }
says() { grep -qF -- "$1" "$T/err" || die "no word of '$1': $(cat "$T/err")"; }

# A port that is held until the test ends.
python3 -c 'import socket, sys
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen()
print(s.getsockname()[1], flush=True); sys.stdin.read()' < <(tail -f /dev/null --pid=$$) >"$T/port" &
until_true 30 "no port to hold" test -s "$T/port"
taken=127.0.0.1:$(cat "$T/port")

echo 'a secret that is long enough' >"$T/open.key"
chmod 644 "$T/open.key"
echo tiny >"$T/short.key"
chmod 600 "$T/short.key"
echo '{ "log-lvel": "info" }' >"$T/typo.json"
echo '{ "log-level": 3 }' >"$T/type.json"
printf '{\n  "log-level" "info"\n}' >"$T/broken.json"
free=(--listen 127.0.0.1:0 --http 127.0.0.1:0)
free_from() { case "$1" in listen) echo --http ;; http) echo --listen ;; esac; }

daemons=0
for words in mc-master 'mc-store serve' mc-conductor mc-prefill mc-decode 'mc-xfer serve'; do
  read -ra daemon <<<"$words"
  program=${daemon[0]}
  if [ ! -x "$MC_BIN/$program" ]; then
    echo "not tested: $program is not built"
    continue
  fi
  daemon[0]=$MC_BIN/$program
  daemons=$((daemons + 1))

  # Flags, environment and files: what is unknown is named, with what is near.
  refused 2 "${daemon[@]}" "${free[@]}" --anounce x
  says "$program: unknown option --anounce: did you mean --announce?"
  refused 2 "${daemon[@]}" "${free[@]}" --log-level loud
  says "--log-level: 'loud' is not one of error,warn,info,debug"
  variable=MC_$(tr a-z- A-Z_ <<<"${program#mc-}")_LISTN
  refused 2 env "$variable=x" "${daemon[@]}" "${free[@]}"
  says "$variable: unknown option 'listn': did you mean 'listen'?"
  refused 2 "${daemon[@]}" "${free[@]}" --config "$T/typo.json"
  says "$T/typo.json: unknown option 'log-lvel'"
  refused 2 "${daemon[@]}" "${free[@]}" --config "$T/type.json"
  says "$T/type.json: 'log-level' is number, want TEXT"
  refused 2 "${daemon[@]}" "${free[@]}" --config "$T/broken.json"
  says "$T/broken.json: parse error at line 2"
  refused 2 "${daemon[@]}" "${free[@]}" --config "$T/absent.json"
  says "open $T/absent.json: No such file or directory"
  refused 2 "${daemon[@]}" "${free[@]}" --config "$T"
  says "--config: $T is a directory, want a file"

  # Addresses.
  for which in listen http; do
    refused 3 "${daemon[@]}" --$which "$taken" "$(free_from $which)" 127.0.0.1:0
    says "$taken"
    says 'in use'
    refused 2 "${daemon[@]}" --$which nonsense "$(free_from $which)" 127.0.0.1:0
    says "'nonsense'"
    says "--$which"
  done
  refused 2 "${daemon[@]}" --listen 0.0.0.0:0 --http 127.0.0.1:0
  says 'without --cluster-key'

  # The cluster key.
  refused 2 "${daemon[@]}" "${free[@]}" --cluster-key "$T/open.key"
  says "$T/open.key may be read by others: chmod 600 it"
  refused 2 "${daemon[@]}" "${free[@]}" --cluster-key "$T/short.key"
  says "$T/short.key: cluster key of 4 bytes: want 16 or more"
  refused 2 "${daemon[@]}" "${free[@]}" --cluster-key "$T/absent.key"
  says "--cluster-key: open $T/absent.key: No such file or directory"
  # A pipe that is never written is waited for no longer than seconds.
  [ -p "$T/pipe" ] || (umask 077 && mkfifo "$T/pipe")
  refused 2 "${daemon[@]}" "${free[@]}" --cluster-key "$T/pipe"
  says "--cluster-key $T/pipe: cluster key of 0 bytes"
  refused 2 "${daemon[@]}" "${free[@]}" --config "$T/pipe"
  says "--config: $T/pipe: "

  refused 2 "${daemon[@]}" "${free[@]}" --announce "$T/no/such/file"
  says "--announce $T/no/such/file: its folder $T/no/such/: No such file or directory"
  refused 2 "${daemon[@]}" "${free[@]}" --announce "$T"
  says "--announce $T is a directory, want a file"
  refused 2 "${daemon[@]}" "${free[@]}" --announce "$T/$(printf '%0300d' 0)"
  says '--announce /'
  says 'File name too long'
  if grep -q 'ready: control' "$T/err"; then die "it was ready with a file that it cannot write"; fi
done
[ "$daemons" -gt 0 ] || skip "no daemon is built in $MC_BIN"

# Verbs, and peers that are not there.
for program in mc-store mc-xfer mc-topo mc-replay; do
  [ -x "$MC_BIN/$program" ] || continue
  refused 2 "$MC_BIN/$program" zebra
  says "$program: unknown verb 'zebra': want one of "
  refused 2 "$MC_BIN/$program"
  refused 2 "$MC_BIN/$program" --completion zsh
done
if [ -x "$MC_BIN/mc-store" ]; then
  refused 3 "$MC_BIN/mc-store" stat --master "$taken" --timeout 300ms  # something else listens there
  says 'is it running there, with the same cluster key?'
  refused 2 "$MC_BIN/mc-store" statt
  says "unknown verb 'statt': did you mean stat?"
  refused 2 "$MC_BIN/mc-store" serve "${free[@]}" --ssd-size 1GiB
  says '--ssd-size without --ssd'
  refused 2 "$MC_BIN/mc-store" verify --ssd "$T/absent" --ssd-size 1GiB
  says "--ssd $T/absent: no such folder"
  [ ! -e "$T/absent" ] || die "a folder was made to be verified"
fi
if [ -x "$MC_BIN/mc-xfer" ]; then  # also where there is no rdma to use them
  refused 2 "$MC_BIN/mc-xfer" serve "${free[@]}" --rdma-mtu 1000
  says 'rdma-mtu 1000: want 256, 512, 1024, 2048, 4096, or 0'
  refused 2 "$MC_BIN/mc-xfer" serve "${free[@]}" --traffic-class 300
  says 'traffic-class 300: want 0 to 255'
  refused 1 "$MC_BIN/mc-xfer" serve "${free[@]}" --nics nosuch0
  says "no interface 'nosuch0'"
  refused 2 "$MC_BIN/mc-xfer" kv --device 'https://[::1]:1'
  says "'https://[::1]:1' is no device"
  refused 2 "$MC_BIN/mc-xfer" publish x "$0" --listen 127.0.0.1:0 --shard 0  # it counted shards for ever
  says '--shard: shards of 0 bytes; want 64 KiB to 1 GiB'
fi
for program in mc-prefill mc-decode; do
  [ -x "$MC_BIN/$program" ] || continue
  refused 2 "$MC_BIN/$program" "${free[@]}" --pool-timeout 0s
  says '--pool-timeout: want more than 0'
  refused 2 "$MC_BIN/$program" "${free[@]}" --role prefill --stage 1/2
  says '--stage 1/2: want I/N'
  refused 2 "$MC_BIN/$program" "${free[@]}" --role prefill --stage 5/9
  says 'stage 5 of 9: want stages from 1 on, 4 at most'
  refused 2 "$MC_BIN/$program" "${free[@]}" --role both --cpp-group 127.0.0.1:1
  says '--cpp-group are for --role prefill, not both'
  refused 2 "$MC_BIN/$program" "${free[@]}" --model "$T/absent.json"
  says "--model: model spec '$T/absent.json': open $T/absent.json: No such file"
  refused 1 "$MC_BIN/$program" "${free[@]}" --trace-events "$T/no/such/trace.json"
  says "$T/no/such/trace.json"
  refused 3 "$MC_BIN/$program" "${free[@]}" --lookup "$T/no/such/socket"
  says "--lookup: listen on $T/no/such/socket: No such file or directory"
  refused 2 "$MC_BIN/$program" "${free[@]}" --lookup "$T/typo.json"
  says "--lookup: $T/typo.json exists and is not a socket: give another path"
  refused 2 "$MC_BIN/$program" "${free[@]}" --lookup "$T/typo.json" --model "$MC_SOURCE/configs/models/tiny.json"
  says 'a specification without weights: the dummy engine answers, its words are made up'
  refused 2 "$MC_BIN/$program" --engine cpu --calibrate "$T/no/such/times.json"
  says "--calibrate $T/no/such/times.json: cannot be written"
  refused 2 "$MC_BIN/$program" --engine cpu --calibrate "$T"
  says "--calibrate $T: a directory: want a file"
  refused 2 "$MC_BIN/$program" --engine cpu --calibrate "$T/times.json" --calibrate-tokens 3
  says '3 tokens (of --calibrate-tokens'
  refused 1 "$MC_BIN/$program" --calibrate "$T/times.json"
  says 'want --engine cpu'
  [ ! -e "$T/times.json" ] || die "times that nobody measured: $(cat "$T/times.json")"
  refused 2 "$MC_BIN/$program" "${free[@]}" --cost "$T/no/such/times.json"
  says "--cost: open $T/no/such/times.json: No such file"
  says 'want a file that mc-prefill --calibrate wrote'
  echo '{"name": "tiny", "lay' >"$T/torn.json"
  refused 2 "$MC_BIN/$program" "${free[@]}" --cost "$T/torn.json"
  says "--cost: $T/torn.json: parse error"
done
if [ -x "$MC_BIN/mc-conductor" ]; then
  refused 2 "$MC_BIN/mc-conductor" "${free[@]}" --http-connections 0
  says '--http-connections: want at least 1'
  for file in --model --models --foreign-engines --api-keys --monitor-key; do
    refused 2 "$MC_BIN/mc-conductor" "${free[@]}" $file "$T/absent.json"
    says "open $T/absent.json: No such file"
  done
  for file in --api-keys --monitor-key; do
    refused 2 "$MC_BIN/mc-conductor" "${free[@]}" $file "$T/open.key"
    says "$T/open.key may be read by others: chmod 600 it"
  done
  refused 2 "$MC_BIN/mc-conductor" "${free[@]}" --foreign-engines "$T"
  says "$T is a directory, want a file"
  echo '[{}]' >"$T/registered.json"
  refused 2 "$MC_BIN/mc-conductor" "${free[@]}" --foreign-state "$T/registered.json"
  says "--foreign-state: $T/registered.json: engine 0:"
  says 'remove it and register again'
  refused 2 "$MC_BIN/mc-conductor" "${free[@]}" --foreign-state "$T/nowhere/registered.json"
  says "$T/nowhere/registered.json"
  says 'want a file that can be written'
  refused 2 "$MC_BIN/mc-conductor" "${free[@]}" --tx-lease 0s
  says '--tx-lease 0ns, want more than 0'
  # Fewer files than clients are allowed: it serves, and says how many may come.
  few() { ulimit -Sn 1000 && ulimit -Hn 3000 && exec timeout 20 "$MC_BIN/mc-conductor" "$@"; }
  (few "${free[@]}" --announce "$T/few.json") 2>"$T/few.err" &
  until_true 30 "a conductor with few files does not start" test -s "$T/few.json"
  kill "$(jq .pid "$T/few.json")" && wait $!
  grep -q -- '--http-connections 4096 wants 4608 open files, .* 3000: at most 2488' "$T/few.err" ||
    die "no word of open files: $(cat "$T/few.err")"
  refused 3 "$MC_BIN/mc-conductor" chat --url http://127.0.0.1:9 hello
  says 'start a cluster (scripts/loopback up) or name one that runs with --url'
  refused 2 "$MC_BIN/mc-conductor" set-role "$taken" typist
  says "'typist'"
fi
if [ -x "$MC_BIN/mc-replay" ]; then
  refused 1 "$MC_BIN/mc-replay" analyze "$T/absent.jsonl"
  says "$T/absent.jsonl"
fi
if [ -x "$MC_BIN/mc-master" ]; then
  refused 2 "$MC_BIN/mc-master" "${free[@]}" --ha http://127.0.0.1:2379
  says "--ha 'http://127.0.0.1:2379': not an etcd URL"
  refused 2 "$MC_BIN/mc-master" "${free[@]}" --ha etcd://127.0.0.1:2379 --leader-ttl 1ms
  says '--leader-ttl 1ms: want 1s to 5m'
  for period in lease-ttl client-ttl suspect-after put-discard hot-window; do
    refused 2 "$MC_BIN/mc-master" "${free[@]}" "--$period" 0s
    says "$period 0ns: want more than nothing"
  done
  # A folder that is no cluster's is not cleared for one.
  mkdir "$T/mine"
  echo kept >"$T/mine/file"
  for verb in up down; do
    refused 1 "$(dirname "$0")/../../scripts/loopback" $verb --dir "$T/mine" --bin "$MC_BIN"
    says "$T/mine holds what is no cluster's: give another --dir"
  done
  [ "$(cat "$T/mine/file")" = kept ] || die "the folder was cleared"
fi
if [ -x "$MC_BIN/mc-store" ]; then
  refused 2 "$MC_BIN/mc-store" cp k --tenant "$(printf '%0100d' 0)"
  says "--tenant: tenant '000000"
  says '64 bytes at most'
  refused 1 "$MC_BIN/mc-store" bench --value 512TiB
  says '--value 512.0 TiB, --count 64, --batch 1, --threads 1: that is '
  says 'ask for less'
fi
if [ -x "$MC_BIN/mc-replay" ]; then
  echo '{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}' >"$T/trace.jsonl"
  refused 2 "$MC_BIN/mc-replay" sim "$T/trace.jsonl" --decode 0
  says '--prefill 8, --decode 0: want at least one node of each'
  for nodes in 30000 18446744073709551615; do # the sum with the others was 7
    refused 2 "$MC_BIN/mc-replay" sim "$T/trace.jsonl" --decode $nodes
    says "--decode $nodes: want 30000 nodes in all at most"
  done
  refused 2 "$MC_BIN/mc-replay" sim "$T/trace.jsonl" --pool-tokens 511
  says '--pool-tokens 511: want at least 512, a block of the trace, or 0 for no pool'
fi
if [ -x "$MC_BIN/mc-store" ] && [ -z "${MC_SANITIZE:-}" ]; then
  # F101: more than there is memory for is an error, and no abort.
  little() { ulimit -v 400000 && head -c 500M /dev/zero | "$MC_BIN/mc-store" put k; }
  (little) 2>"$T/err" && die "500 MB fitted into 400"
  says 'out of memory (no-space)'
fi
echo "$daemons daemons"
