#!/usr/bin/env bash
# Each member that the front reads of a request, or refuses by name, is in the OpenAPI document.
. "$(dirname "$0")/../common.inc"
cat >"$T/compare.py" <<'PYTHON'
import json, pathlib, re, sys

folder = pathlib.Path(sys.argv[1])
schemas = json.loads((folder / "openapi/openapi.json").read_text())['components']['schemas']
known = set()


def add(schema):
    for name, inner in schema.get('properties', {}).items():
        known.add(name)
        add(inner)
    for inner in schema.get('anyOf', []) + [schema[k] for k in ('items',) if k in schema]:
        add(inner)


for schema in schemas.values():
    add(schema)
# Inside of messages, and a header.
inner = {'arguments', 'function', 'text', 'content', 'connection'}
read = {}
for path in sorted([*folder.glob("request/*.cc"), *folder.glob("frontend/openai*.cc")]):
    text = path.read_text()
    for name in re.findall(r'(?:\bread(?:_int)?|\bfind(?:_string)?|\bmember)\([^()"]*"([a-z_]+)"', text):
        read.setdefault(name, path.name)
assert len(read) > 40, read
missing = {name: where for name, where in read.items() if name not in known | inner}
sys.exit(f'not in openapi.json, and read: {missing}' if missing else 0)
PYTHON
expect 0 python3 "$T/compare.py" "$MC_SOURCE/lib/serve"
