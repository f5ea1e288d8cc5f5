"""Members a class: functions and data at its own level. Nested types, friends, aliases and deleted
functions do not count; `int a, b;` counts once."""
import re

MEMBERS_MAX = 40
OPERATOR = re.compile(r'\boperator\s*(\(\s*\)|\[\s*\]|[^\s\w(]+)')
LABELS = re.compile(r'^(\s*(public|private|protected)\s*:(?!:))+')
TYPE = re.compile(r'^(?:typedef\s+)?(?:class|struct|union)\s+'
                  r'(?:alignas\s*\([^)]*\)\s*|MC_\w+(?:\([^)]*\))?\s*|\[\[[^\]]*\]\]\s*)*'
                  r'([\w:]+)?\s*(?:<[^{}]*>\s*)?(?:final\s*)?(?::[^:].*)?$', re.S)
NOT_MEMBERS = re.compile(r'^(friend|using|typedef|static_assert)\b|'
                         r'^(enum\s+)?(class|struct|union)\s+[\w:]+\s*(:\s*[\w:]+\s*)?$|'
                         r'^enum\b|=\s*delete$')


def declaration(text):
    """What a statement declares, without access labels and template parameters."""
    text = LABELS.sub('', text).strip()
    while text.startswith('template'):
        depth = 0
        for i, c in enumerate(text):
            depth += (c == '<') - (c == '>')
            if c == '>' and depth == 0:
                text = text[i + 1:].strip()
                break
        else:
            return ''
    return text


def opens_body(head):
    """Whether `head {` is a function with its body, not a member with its initial value."""
    flat = head
    while True:
        shorter = re.sub(r'\([^()]*\)', '~', flat)
        if shorter == flat:
            break
        flat = shorter
    if '~' not in flat or '=' in flat:
        return False
    in_initialisers = re.search(r'~\s*(?:noexcept\s*)?:(?!:)', flat)
    return not (in_initialisers and re.search(r'[\w>]$', flat.rstrip()))


class Frame:
    """An open `{`: of a class with that name, of a function's body, or of anything else."""

    def __init__(self, start, ends=None, name=None, line=0):
        self.start, self.ends, self.name, self.line = start, ends, name, line
        self.count, self.parens = 0, 0


def classes(code):
    """(name, line, members) of each class of a text without comments and strings."""
    code = OPERATOR.sub('operator_', code)
    stack = [Frame(0)]
    for token in re.finditer(r'[{}();]', code):
        at, c, frame = token.start(), token[0], stack[-1]
        if c in '()':
            frame.parens += 1 if c == '(' else -1
        elif c == '{':
            head = declaration(code[frame.start:at]) if not frame.parens else ''
            kind = TYPE.match(head)
            if kind:
                outer = [f.name for f in stack if f.name]
                name = '::'.join([*outer[-1:], kind[1] or '(anonymous)'])
                stack.append(Frame(at + 1, 'type', name, code.count('\n', 0, at) + 1))
            elif head.startswith('enum'):
                stack.append(Frame(at + 1, 'type'))
            elif not frame.parens and (not frame.name or opens_body(head)):
                stack.append(Frame(at + 1, 'body'))
            else:
                stack.append(Frame(at + 1, 'value'))
        elif c == '}' and len(stack) > 1:
            ended, frame = stack.pop(), stack[-1]
            if ended.name:
                yield ended.name, ended.line, ended.count
            if ended.ends == 'body':
                head = declaration(code[frame.start:ended.start - 1])
                frame.count += not NOT_MEMBERS.search(head)
            if ended.ends != 'value':
                frame.start = at + 1
        elif c == ';' and not frame.parens:
            text = declaration(code[frame.start:at])
            frame.count += bool(text) and not NOT_MEMBERS.search(text)
            frame.start = at + 1


def check(sources, exceptions, faults):
    expected = dict(exceptions.members)
    for source in sources:
        for name, line, count in classes(source.code()) if source.product else ():
            n, allowed = expected.pop((source.name, name), (0, MEMBERS_MAX))
            if count > allowed:
                faults.append(f'{source.path}:{line}: {name} has {count} members, '
                              f'{allowed} at most: which of them are an object of their own?')
            elif n and count < allowed:
                remedy = 'lower the number' if count > MEMBERS_MAX else 'take the line away'
                faults.append(f'{exceptions.path}:{n}: {name} has {count} members now: {remedy}')
    for (file, name), (n, _) in expected.items():
        faults.append(f'{exceptions.path}:{n}: {file} has no class {name}: take the line away')
