"""members.py SOURCE [--write]: docs/members.md says of each member of a request what own workers do.

Compares its table with that of lib/serve/request/request_members.cc, and the OpenAPI document's members
with it; --write writes both anew.
"""
import json
import pathlib
import re
import sys

APIS = {'CompletionRequest': 0, 'ChatRequest': 1, 'ResponsesRequest': 2, 'MessagesRequest': 3,
        'TokenizeRequest': 4, 'DetokenizeRequest': 5}
WORDS = {'D': 'done', 'T': 'template', 'R': '400', 'N': 'no effect', '-': ''}
NOTES = {'T': 'Given to the chat template.', 'R': 'External engines only.',
         'N': 'No effect on own workers.'}


def rows(source):
    text = (source / 'lib/serve/request/request_members.cc').read_text()
    table = text[text.index('kMemberRows[] = {'):]
    found = re.findall(r'^    \{"(\w+)", "([DTRN-]{6})", "((?:[^"\\]|\\.)*)"\},$', table, re.M)
    assert len(found) > 100, len(found)
    return [(name, fates, idle.replace('\\"', '"')) for name, fates, idle in found]


def page(table):
    lines = ['| member | completions | chats | responses | messages | tokenize | detokenize | asks for nothing |',
             '|---|---|---|---|---|---|---|---|']
    for name, fates, idle in table:
        cells = [f'`{name}`', *(WORDS[f] for f in fates), f'`{idle}`' if idle else '']
        lines.append('| ' + ' | '.join(cells) + ' |')
    return '\n'.join(lines) + '\n'


def missing(table, schemas):
    """{schema: {name: fate}}: what the document does not have."""
    out = {}
    for schema, at in APIS.items():
        has = schemas[schema]['properties']
        out[schema] = {name: fates[at] for name, fates, _ in table if fates[at] != '-' and name not in has}
    return out


def main():
    source = pathlib.Path(sys.argv[1])
    table = rows(source)
    docs, document = source / 'docs/members.md', source / 'lib/serve/openapi/openapi.json'
    text = docs.read_text()
    begin = text.index('| member |')
    end = text.find('\n\n', begin)
    end = len(text) if end < 0 else end + 1
    if '--write' in sys.argv[2:]:
        docs.write_text(text[:begin] + page(table) + text[end:])
        api = document.read_text()
        for schema, names in missing(table, json.loads(api)['components']['schemas']).items():
            at = api.index('"properties": {', api.index(f'      "{schema}": {{'))
            close = api.index('\n        }', at)
            for name, fate in names.items():
                line = f',\n          "{name}": {{"description": "{NOTES.get(fate, "As in chats.")}"}}'
                api, close = api[:close] + line + api[close:], close + len(line)
        document.write_text(api)
        return
    assert text[begin:end] == page(table), \
        'docs/members.md is not as lib/serve/request/request_members.cc: run tests/cli/members.py . --write'
    for schema, names in missing(table, json.loads(document.read_text())['components']['schemas']).items():
        assert not names, f'openapi.json: {schema} has no {", ".join(names)}'


main()
