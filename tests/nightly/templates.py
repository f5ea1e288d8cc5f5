#!/usr/bin/env python3
"""Renders chat templates with the jinja2 package and with ours, and compares.

    templates.py RENDERER FOLDER.. [--rounds N] [--seed N]

RENDERER is build/release/template-render. Every *.jinja file below the folders is rendered for random
conversations (turns, tools, tool calls, content parts, names beyond ASCII). A conversation that both
refuse is counted as refused. Exits with 1 on any difference, and with 77 where jinja2 or templates are absent.
"""
import argparse
import datetime
import json
import pathlib
import random
import subprocess
import sys

NOW = datetime.datetime(2025, 3, 7, 9, 5, 2)
WORDS = ['hello', 'Grüße', '你好', ' leading', 'trailing \n', '<b>&"quoted"</b>', "it's", '🙂', '\n\n', 'x' * 40,
         '{"a": 1}', '<think>\nsecret\n</think>\n\nshown', '{{ not }} {% code %}', 'a\tb', '\u00a0wide\u2003', '1 + 2 = 3']


def text(draw):
    return ' '.join(draw.choice(WORDS) for _ in range(draw.randint(0, 4)))


def schema(draw, depth=0):
    kinds = ['string', 'integer', 'number', 'boolean']
    if depth < 2:
        kinds += ['array', 'object']
    made = {'type': draw.choice(kinds)}
    if draw.random() < 0.7:
        made['description'] = text(draw)
    if made['type'] == 'string' and draw.random() < 0.3:
        made['enum'] = ['a', 'b"c', 'Ä']
    if made['type'] == 'array' and draw.random() < 0.8:
        made['items'] = schema(draw, depth + 1)
    if made['type'] == 'object':
        made['properties'] = {f'p{i}': schema(draw, depth + 1) for i in range(draw.randint(0, 3))}
        if draw.random() < 0.6:
            made['required'] = list(made['properties'])[:1]
    if draw.random() < 0.2:
        made['default'] = draw.choice([1, 2.5, True, None, 'x', [1, 'two'], {'k': None}])
    return made


def tool(draw, i):
    parameters = {'type': 'object', 'properties': {f'arg{k}': schema(draw) for k in range(draw.randint(0, 3))}}
    if draw.random() < 0.7:
        parameters['required'] = list(parameters['properties'])[:2]
    return {'type': 'function', 'function': {'name': f'tool_{i}', 'description': text(draw) or 'does',
                                             'parameters': parameters}}


def call(draw, tools):
    arguments = {f'arg{k}': draw.choice([1, -2.5, 1e20, 'Zürich', True, None, [1, 'x'], {'k': ['v']}])
                 for k in range(draw.randint(0, 3))}
    return {'id': f'call_{draw.randint(0, 10 ** 8):09d}', 'type': 'function',
            'function': {'name': draw.choice(tools)['function']['name'],
                         'arguments': arguments if draw.random() < 0.8 else json.dumps(arguments)}}


def content(draw, parts):
    if parts and draw.random() < 0.5:
        return [{'type': 'text', 'text': text(draw)} for _ in range(draw.randint(1, 3))]
    return text(draw)


def conversation(draw):
    parts, with_tools = draw.random() < 0.3, draw.random() < 0.6
    tools = [tool(draw, i) for i in range(draw.randint(1, 3))] if with_tools else None
    messages = []
    if draw.random() < 0.5:
        messages.append({'role': 'system', 'content': content(draw, parts)})
    for _ in range(draw.randint(1, 4)):
        messages.append({'role': 'user', 'content': content(draw, parts)})
        if tools and draw.random() < 0.5:
            calls = [call(draw, tools) for _ in range(draw.choice([1, 1, 2]))]
            said = {'role': 'assistant', 'content': draw.choice([None, '', text(draw)]), 'tool_calls': calls}
            if draw.random() < 0.3:
                said['reasoning_content'] = text(draw)
            messages.append(said)
            for c in calls:
                messages.append({'role': 'tool', 'tool_call_id': c['id'], 'name': c['function']['name'],
                                 'content': draw.choice([text(draw), '{"ok": true}'])})
        if draw.random() < 0.7:
            messages.append({'role': 'assistant', 'content': content(draw, parts)})
    made = {'messages': messages, 'add_generation_prompt': draw.random() < 0.7,
            'bos_token': '<s>', 'eos_token': '</s>'}
    if draw.random() < 0.9:
        made['tools'] = tools
        made['documents'] = None
    if draw.random() < 0.2:
        made['documents'] = [{'title': text(draw), 'text': text(draw)} for _ in range(2)]
    for name, values in {'enable_thinking': [True, False], 'reasoning_effort': ['low', 'high'],
                         'date_string': ['26 Jul 2024'], 'tools_in_user_message': [True, False],
                         'keep_past_thinking': [True], 'builtin_tools': [['browser', 'python']]}.items():
        if draw.random() < 0.2:
            made[name] = draw.choice(values)
    return made


def environment():
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        tags = {'generation'}

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(['name:endgeneration'], drop_needle=True)

    def refuse(why):
        raise jinja2.TemplateError(why)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters['tojson'] = tojson
    env.globals['raise_exception'] = refuse
    env.globals['strftime_now'] = NOW.strftime
    return env


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument('renderer')
    cli.add_argument('folders', nargs='+')
    cli.add_argument('--rounds', type=int, default=50)
    cli.add_argument('--seed', type=int, default=1)
    o = cli.parse_args()
    try:
        env = environment()
    except ImportError:
        print('skipped: there is no Python package jinja2')
        return 77
    paths = sorted({p for f in o.folders for p in pathlib.Path(f).rglob('*.jinja') if 'torch' not in p.parts})
    if not paths:
        print('skipped: no template below', *o.folders)
        return 77
    ours = subprocess.Popen([o.renderer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    equal = refused = different = 0
    for path in paths:
        try:
            program = env.from_string(path.read_text())
        except Exception as e:  # noqa: BLE001: another extension's template
            print(f'{path.name}: jinja2 does not take it: {e}')
            continue
        draw = random.Random(f'{o.seed} {path.name}')
        faults, renders = [], 0
        for _ in range(o.rounds):
            variables = conversation(draw)
            try:
                want = program.render(**variables)
            except Exception as e:  # noqa: BLE001: it refuses this conversation
                want, why = None, str(e)
            ask = {'template': str(path), 'variables': variables, 'now': list(NOW.timetuple())[:6]}
            ours.stdin.write(json.dumps(ask) + '\n')
            ours.stdin.flush()
            got = json.loads(ours.stdout.readline())
            if want is None and 'error' in got:
                refused += 1
            elif want is not None and got.get('text') == want:
                equal += 1
                renders += 1
            else:
                different += 1
                faults.append((want if want is not None else 'refused: ' + why, got))
        print(f'{path.name}: {renders} of {o.rounds} equal, {len(faults)} different')
        for want, got in faults[:1]:
            said = got.get('text', 'error: ' + str(got.get('error')))
            at = next((i for i, (a, b) in enumerate(zip(want, said)) if a != b), min(len(want), len(said)))
            print(f'  want {want[max(at - 40, 0):at + 80]!r}\n  have {said[max(at - 40, 0):at + 200]!r}')
    ours.stdin.close()
    ours.wait()
    print(f'{len(paths)} templates: {equal} renderings equal, {refused} refused by both, {different} different')
    return 1 if different or not equal else 0


if __name__ == '__main__':
    sys.exit(main())
