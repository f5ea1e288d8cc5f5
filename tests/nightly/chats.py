"""chats.py FILE [--write]: what vLLM makes of messages and responses before it renders the template.

FILE has [{"path", "body", "chat"}, ..]: `chat` is what we say that vLLM makes of it, and what the test
unit/serve/engine_chat holds us to. --write puts there what the installed vLLM makes.
"""
import copy
import json
import sys

from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import construct_input_messages, construct_tool_dicts


def plain(value):
    """Without what is null, and with lists for what pydantic reads once."""
    if hasattr(value, 'model_dump'):
        value = value.model_dump()
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, str) or not hasattr(value, '__iter__'):
        return value
    return [plain(inner) for inner in value]


def part(given):
    """A part as a chat names it: both names are the same to vLLM's renderer."""
    if isinstance(given, dict) and given.get('type') == 'input_text':
        return {'type': 'text', 'text': given['text']}
    if isinstance(given, dict) and given.get('type') == 'input_image':
        return {'type': 'image_url', 'image_url': {'url': given['image_url']}}
    return given


def message(given):
    kept = {name: given[name] for name in given if name not in ('type', 'id', 'status')}
    if isinstance(kept.get('content'), list):
        kept['content'] = [part(inner) for inner in kept['content']]
    return kept


def chat_of(path, body):
    if path == '/v1/messages':
        made = AnthropicServingMessages.to_chat_completion_request(AnthropicMessagesRequest.model_validate(body))
        messages, tools, effort = made.messages, made.tools, made.reasoning_effort
        variables = made.chat_template_kwargs
    else:
        asked = ResponsesRequest.model_validate(body)
        messages = construct_input_messages(request_instructions=asked.instructions, request_input=asked.input)
        tools = construct_tool_dicts(asked.tools, asked.tool_choice)
        effort = asked.reasoning.effort if asked.reasoning else None
        variables = asked.chat_template_kwargs
    chat = {'messages': [message(one) for one in plain(messages)], 'tools': plain(tools or []) or None,
            'reasoning_effort': effort, 'chat_template_kwargs': variables}
    return {name: value for name, value in chat.items() if value is not None}


def main():
    file = sys.argv[1]
    cases = json.load(open(file, encoding='utf-8'))
    wrong = 0
    for case in cases:
        made = chat_of(case['path'], copy.deepcopy(case['body']))  # validators change it
        if '--write' not in sys.argv and made != case['chat']:
            print(f'{case["path"]} {json.dumps(case["body"])}\n  is {made}\n  and not {case["chat"]}')
            wrong += 1
        case['chat'] = made
    if '--write' in sys.argv:
        lines = ',\n'.join(json.dumps(case, ensure_ascii=False) for case in cases)
        open(file, 'w', encoding='utf-8').write(f'[\n{lines}\n]\n')
    print(f'{len(cases)} requests, {wrong} as another chat')
    return 1 if wrong else 0


if __name__ == '__main__':
    sys.exit(main())
