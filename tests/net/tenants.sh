#!/usr/bin/env bash
# Keys of tenants: who has none gets nothing, who asks too often waits, and what one computed is
# reused for another only where both share. The prefill worker takes short prompts first.
source "$(dirname "$0")/../common.inc"
source "$(dirname "$0")/cluster.inc"
umask 077 # others may not read keys
cat >"$T/keys.json" <<'JSON'
{ "tenants": [
    { "name": "a", "keys": ["key-of-a-1", "key-of-a-2"] },
    { "name": "b", "keys": ["key-of-b"], "requests-per-minute": 1 },
    { "name": "c", "keys": ["key-of-c"], "cache": "shared" },
    { "name": "ops", "keys": ["key-of-ops"], "cache": "shared", "admin": true } ] }
JSON
export MC_CONDUCTOR_API_KEYS=$T/keys.json MC_PREFILL_PREFILL_ORDER=srpf
cluster_up --prefill 1 --decode 1 --store 1

prompt=$(jq -nc '[range(1; 1025)]')
ask() { # KEY -> $T/body, $T/headers; prints the status
  curl -s -m 20 -o "$T/body" -D "$T/headers" -w '%{http_code}' -H "authorization: Bearer $1" \
    --json "{\"model\":\"tiny\",\"prompt\":$prompt,\"max_tokens\":2}" "$URL/v1/completions"
}
check() { # KEY STATUS JQ-CONDITION
  local status
  status=$(ask "$1")
  [ "$status" = "$2" ] || die "$1: status $status, want $2: $(cat "$T/body")"
  jq -e "$3" "$T/body" >/dev/null || die "$1: answer lacks $3: $(cat "$T/body")"
}
reuses() { [ "$(ask "$1")" = 200 ] && jq -e '.usage.prompt_tokens_details.cached_tokens == 768' "$T/body"; }

check nobody 401 '.error.code == "invalid_api_key"'
grep -qi '^www-authenticate: Bearer' "$T/headers" || die "401 does not say how to do better"
check key-of-a-1 200 '.usage.prompt_tokens_details.cached_tokens == 0'
until_true 30 "a tenant does not reuse its own cache" reuses key-of-a-2
check key-of-b 200 '.usage.prompt_tokens_details.cached_tokens == 0'
check key-of-b 429 '.error.code == "rate_limit_exceeded"'
grep -qi '^retry-after: 30' "$T/headers" || die "429 does not say when: $(cat "$T/headers")"
check key-of-c 200 '.usage.prompt_tokens_details.cached_tokens == 0'
until_true 30 "tenants that share do not reuse each other's cache" reuses key-of-ops

page() { curl -s -m 5 -o "$T/body" -w '%{http_code}' -H "authorization: Bearer $1" "$URL/$2"; }
[ "$(page key-of-a-1 config)" = 403 ] || die "settings are shown to a tenant"
[ "$(page key-of-ops config)" = 200 ] || die "settings are not shown to an admin: $(cat "$T/body")"
jq -e '."api-keys".origin == "environment"' "$T/body" >/dev/null || die "$(cat "$T/body")"

# New keys: with SIGHUP at once, and by themselves when the file changes.
sed 's/key-of-c/new-key-of-c/' "$T/keys.json" >"$T/keys.new" && mv "$T/keys.new" "$T/keys.json"
kill -HUP "$(jq -r .pid "$T/cluster/conductor.json")"
takes() { [ "$(page "$1" v1/models)" = "$2" ]; }
until_true 30 "a new key is not taken" takes new-key-of-c 200
until_true 30 "an old key is still taken" takes key-of-c 401

for page in live ready health metrics cluster; do
  [ "$(page none $page)" = 200 ] || die "/$page wants a key"
done
grep -rq 'key-of-a' "$T/cluster" && die "a key is in a log"
true
