"""scripts/exceptions.txt: violations of the rules that remain. It only shrinks.

    circle UNIT UNIT...       files that include each other
    class FILE NAME MEMBERS   more than 40
"""


class Exceptions:
    def __init__(self, path):
        self.path, self.circles, self.members = path.name, {}, {}
        for n, line in enumerate(path.read_text().split('\n') if path.exists() else (), 1):
            words = line.split()
            if not words or line.startswith('#'):
                continue
            if words[0] == 'circle' and len(words) > 2:
                self.circles[frozenset(words[1:])] = n
            elif words[0] == 'class' and len(words) == 4 and words[3].isdigit():
                self.members[words[1], words[2]] = n, int(words[3])
            else:
                raise SystemExit(f'{path}:{n}: neither circle nor class: {line}')
