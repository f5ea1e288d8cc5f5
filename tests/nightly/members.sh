#!/usr/bin/env bash
# The members of requests that the types of openai, anthropic and vLLM have are all in docs/members.md, so
# that own workers ignore none in silence: tests/nightly/members.py. Half a minute where vLLM is.
# -P: this folder has a vllm.py, which is not the package.
source "$(dirname "$0")/../common.inc"
engines=${MC_ENGINES:-$MC_SOURCE/build/engines}
clients=${MC_CLIENTS:-$MC_SOURCE/build/clients}
compared=no
for python in "$clients/bin/python" "$engines"/vllm-*/bin/python; do
  if ! "$python" -c 'import openai, anthropic' 2>"$T/err"; then continue; fi
  compared=yes
  "$python" -P "$MC_SOURCE/tests/nightly/members.py" "$MC_SOURCE/docs/members.md" || die "see above"
done
[ $compared = yes ] || skip "no clients in $clients: scripts/setup --clients makes it"
