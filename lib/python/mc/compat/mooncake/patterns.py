"""Patterns of remove_by_regex: theirs are of C++ (ECMAScript), over the bytes of a key.

`compiled` makes the same of Python's `re`. ValueError for what C++ does not compile either.
"""
from __future__ import annotations

import re
from typing import List, Optional, Pattern

_CLASSES = {'alpha': 'a-zA-Z', 'digit': '0-9', 'alnum': 'a-zA-Z0-9', 'upper': 'A-Z', 'lower': 'a-z',
            'space': r'\s', 'punct': r'!-/:-@\[-`{-~',
            'xdigit': '0-9a-fA-F', 'cntrl': r'\x00-\x1f\x7f',
            'print': ' -~', 'graph': '!-~', 'blank': r' \t'}
_QUANTIFIER = re.compile(r'[*+?]|\{\d+(?:,\d*)?\}')
_ESCAPES = re.compile(r'c([A-Za-z])|x[0-9a-fA-F]{2}|u([0-9a-fA-F]{4})|[dDwWsSbBfnrtv]|0|[1-9]\d*')


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.groups = text, 0, 0

    def more(self) -> bool:
        return self.at < len(self.text)

    def take(self, text: str) -> bool:
        there = self.text.startswith(text, self.at)
        self.at += len(text) if there else 0
        return there

    def alternatives(self) -> str:
        """Until the end, or the bracket that closes a group."""
        out: List[str] = []
        last: Optional[str] = None  # what a quantifier would mean
        while self.more() and self.text[self.at] != ')':
            found = _QUANTIFIER.match(self.text, self.at)
            if found:
                if last is None:
                    raise ValueError(f'nothing to repeat at {self.at}')
                self.at = found.end()
                lazy = '?' if self.take('?') else ''
                last = f'(?:{last}){found[0]}{lazy}'
                out[-1] = last
                continue
            last = self.one()
            out.append(last)
            if last in ('|', '^', '$', r'\b', r'\B') or last.startswith(('(?=', '(?!')):
                last = None
        return ''.join(out)

    def one(self) -> str:
        c = self.text[self.at]
        if c == '(':
            return self.group()
        if c == '[':
            return self.bracket()
        self.at += 1
        if c == '\\':
            return self.escape()
        if c == '{':
            raise ValueError('a brace that repeats nothing')
        if c == '$':
            return r'\Z'
        return c if c in '|^.' else re.escape(c)

    def group(self) -> str:
        self.at += 1
        kind = ''
        if self.take('?'):
            if not self.more() or self.text[self.at] not in ':=!':
                raise ValueError('an unknown kind of group')
            kind = '?' + self.text[self.at]
            self.at += 1
        else:
            self.groups += 1
        inner = self.alternatives()
        if not self.take(')'):
            raise ValueError('a group that is not closed')
        return f'({kind}{inner})'

    def escape(self) -> str:
        found = _ESCAPES.match(self.text, self.at)
        if not self.more():
            raise ValueError('a backslash at the end')
        if not found:
            self.at += 1
            return re.escape(self.text[self.at - 1])
        self.at = found.end()
        if found[1]:
            return re.escape(chr(ord(found[1]) % 32))
        if found[2]:
            return re.escape(chr(int(found[2], 16)))
        if found[0].isdigit() and not 0 < int(found[0]) <= self.groups and found[0] != '0':
            raise ValueError('a group that is not there')
        return r'\x00' if found[0] == '0' else '\\' + found[0]

    def bracket(self) -> str:
        self.at += 1
        negated = self.take('^')
        out = ''
        while not self.take(']'):
            if not self.more():
                raise ValueError('a bracket that is not closed')
            if self.take('[:'):
                name, closed, _ = self.text[self.at:].partition(':]')
                if not closed or name not in _CLASSES:
                    raise ValueError('an unknown class of characters')
                self.at += len(name) + 2
                out += _CLASSES[name]
            elif self.take('\\'):
                out += self.escape()
            else:
                c = self.text[self.at]
                self.at += 1
                out += c if c == '-' else re.escape(c)
        if not out:
            return r'[\s\S]' if negated else '(?!)'
        return f'[{"^" if negated else ""}{out}]'


def compiled(pattern: str) -> Pattern[bytes]:
    """To search in the bytes of a key."""
    parser = _Parser(pattern)
    text = parser.alternatives()
    if parser.more():
        raise ValueError('a bracket that closes nothing')
    try:
        return re.compile(text.encode('utf-8', 'surrogateescape'))
    except re.error as e:
        raise ValueError(str(e)) from None
