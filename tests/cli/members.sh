#!/usr/bin/env bash
# docs/members.md, the OpenAPI document and the code say the same of each member of a request.
. "$(dirname "$0")/../common.inc"
expect 0 python3 "$MC_SOURCE/tests/cli/members.py" "$MC_SOURCE"
