"""The source files, read once for all checks."""
import re

PRODUCT = ('lib', 'cmd')
INCLUDE = re.compile(r'^#\s*include\s+(["<])([^">]+)[">]', re.M)
NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'
                   r'(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', re.S)
DIRECTIVE = re.compile(r'^#(?:[^\n]*\\\n)*[^\n]*', re.M)


class Source:
    def __init__(self, root, path):
        self.path = path.relative_to(root).as_posix()
        self.name = self.path.removeprefix('lib/')  # as others include it
        self.product = self.path.split('/')[0] in PRODUCT
        self.folder, _, file = self.name.rpartition('/')
        self.stem, _, self.suffix = file.rpartition('.')
        self.text = path.read_text()
        self.lines = self.text.rstrip('\n').split('\n')
        self.includes = [(self.line_at(m.start()), m[1] == '"', m[2])
                         for m in INCLUDE.finditer(self.text)]

    def line_at(self, position):
        return self.text.count('\n', 0, position) + 1

    def code(self):
        """The text without comments, strings and directives; its lines keep their numbers."""
        text = NOISE.sub(lambda m: ' ' + '\n' * m[0].count('\n'), self.text)
        return DIRECTIVE.sub(lambda m: '\n' * m[0].count('\n'), text)

    def opening(self):
        """The comment that the file begins with."""
        lines = iter(self.lines)
        comment = []
        for line in lines:
            if line.startswith('//'):
                comment.append(line)
            elif comment or not (line == '' or line.startswith('#pragma once')):
                break
        return '\n'.join(comment)


def read_all(root):
    folders = [root / d for d in ('lib', 'cmd', 'tests', 'bench')]
    paths = sorted(p for d in folders for p in d.rglob('*') if p.suffix in ('.h', '.cc', '.cu'))
    return [Source(root, path) for path in paths]
