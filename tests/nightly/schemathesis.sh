#!/usr/bin/env bash
# schemathesis against a conductor with own workers, by the document that /openapi.json serves: first
# without keys, then as an admin, who registers engines that are not there. No request may crash it, answer
# 500, or answer what the document does not say; what breaks a schema is refused. Two minutes.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/../net/cluster.inc"
clients=${MC_CLIENTS:-$MC_SOURCE/build/clients}
[ -e "$clients/ready" ] || skip "no clients in $clients: scripts/setup --clients makes it"
[ -x "$clients/bin/schemathesis" ] ||
  skip "no schemathesis in $clients: remove the folder, and run scripts/setup --clients"
examples=${MC_EXAMPLES:-60}
check() { # NAME ARGUMENTS...
  local began
  began=$(curl -fsS -m 10 "${key[@]}" "$URL/cluster" | jq .epoch)
  # With a model that is there, and few tokens, so that most requests are answered.
  curl -fsS -m 10 "$URL/openapi.json" | jq '
    .components.schemas |= (
      (.CompletionRequest, .ChatRequest).properties.model = {enum: ["tiny"]} |
      (.TokenizeRequest, .DetokenizeRequest).properties.model = {enum: ["tiny", null]} |
      (.CompletionRequest, .ChatRequest).properties |=
        (.max_tokens.maximum = 32 | .max_completion_tokens.maximum = 32 | .min_tokens.maximum = 1))' >"$T/openapi.json"
  # Rules between members are in no schema: best_of and n, the prompt and the context.
  (cd "$T" && "$clients/bin/schemathesis" run "$T/openapi.json" --url "$URL" --max-examples "$examples" \
    --exclude-checks positive_data_acceptance --seed 7 --workers 2 --request-timeout 60 \
    --generation-database none --warnings off --no-color "${key[@]}" "${@:2}" >"$T/$1.log" 2>&1) ||
    { cat "$T/$1.log" >&2; die "schemathesis, $1: see above"; }
  grep -A 1 '^Test cases:' "$T/$1.log"
  curl -fsS -m 10 "$URL/ready" -o "$T/out" || die "not ready after schemathesis, $1: $(cat "$T/out")"
  [ "$(curl -fsS -m 10 "${key[@]}" "$URL/cluster" | jq .epoch)" = "$began" ] || die "another conductor answers, $1"
  ! grep -aE 'AddressSanitizer|runtime error:' "$T"/cluster/*.log || die "see above"
}
key=()
cluster_up --prefill 1 --decode 1 --store 0
check open
loopback down
rm -rf "$T/cluster"
(umask 077 && echo '{"tenants":[{"name":"a","keys":["key-of-a"],"admin":true}]}' >"$T/keys.json")
cluster_up --prefill 1 --decode 1 --store 0 --with "conductor:--api-keys $T/keys.json"
key=(-H "authorization: Bearer key-of-a")
check admin --exclude-path /admin/scale-in # which ends workers
