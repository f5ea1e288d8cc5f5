"""members.py MEMBERS.md: every member that clients' types have is in the table of docs/members.md.

Prints a line for each API: how many names, and the package. With vLLM installed its requests count too.
"""
import importlib
import importlib.metadata
import re
import sys

COLUMNS = ('completions', 'chats', 'responses', 'messages', 'tokenize', 'detokenize')
TYPES = {
    'completions': ['openai.types.completion_create_params:CompletionCreateParamsBase'],
    'chats': ['openai.types.chat.completion_create_params:CompletionCreateParamsBase'],
    'responses': ['openai.types.responses.response_create_params:ResponseCreateParamsBase'],
    'messages': ['anthropic.types.message_create_params:MessageCreateParamsBase',
                 'anthropic.types.beta.message_create_params:MessageCreateParamsBase',
                 'anthropic.types.message_count_tokens_params:MessageCountTokensParams'],
}
VLLM = {
    'completions': ['vllm.entrypoints.openai.completion.protocol:CompletionRequest'],
    'chats': ['vllm.entrypoints.openai.chat_completion.protocol:ChatCompletionRequest'],
    'responses': ['vllm.entrypoints.openai.responses.protocol:ResponsesRequest'],
    'messages': ['vllm.entrypoints.anthropic.protocol:AnthropicMessagesRequest'],
    'tokenize': ['vllm.entrypoints.serve.tokenize.protocol:TokenizeCompletionRequest',
                 'vllm.entrypoints.serve.tokenize.protocol:TokenizeChatRequest'],
    'detokenize': ['vllm.entrypoints.serve.tokenize.protocol:DetokenizeRequest'],
}


def table(path):
    known = {column: set() for column in COLUMNS}
    for line in open(path, encoding='utf-8'):
        if not re.match(r'\| `\w+` \|', line):
            continue
        name, *cells = [cell.strip() for cell in line.strip().strip('|').split('|')]
        for column, cell in zip(COLUMNS, cells):
            if cell:
                known[column].add(name.strip('`'))
    assert len(known['chats']) > 80, known
    return known


def members(where):
    module, name = where.split(':')
    kind = getattr(importlib.import_module(module), name)
    if hasattr(kind, 'model_fields'):  # pydantic; names that begin with _ are the server's own
        return {field for field in kind.model_fields if not field.startswith('_')}
    names = set()
    for base in [kind, *getattr(kind, '__orig_bases__', ())]:
        names |= set(getattr(base, '__annotations__', {}))
    return names


def main():
    known = table(sys.argv[1])
    missing = []
    for types, packages in ((TYPES, ('openai', 'anthropic')), (VLLM, ('vllm',))):
        try:
            versions = ' '.join(f'{p} {importlib.metadata.version(p)}' for p in packages)
        except importlib.metadata.PackageNotFoundError as e:
            print(f'members: no {e.name}: not compared')
            continue
        for column, wheres in types.items():
            names = set().union(*(members(where) for where in wheres))
            assert 'model' in names, (column, names)
            missing += [f'{column}: {name} ({versions})' for name in sorted(names - known[column])]
            print(f'members: {column}: {len(names)} of {versions}')
    assert not missing, 'not in docs/members.md: ' + '; '.join(missing)


main()
