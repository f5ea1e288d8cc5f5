"""lib/layers.txt: the folders of lib and cmd, what each may include, and what it is.

A line is `FOLDER...: MAY... | WHAT; WHAT...`, WHAT once for all or for each. `x/.` is what lies in
x itself where x has sub-folders. FOLDER! is a pure folder. What `x` may include, everything below x
may include too.
"""
import re

FOLDER = re.compile(r'[a-z0-9_-]+(/[a-z0-9_-]+)*(/\.)?')


class Folder:
    def __init__(self, name, pure, may, what, line):
        self.name, self.pure, self.may, self.what, self.line = name, pure, may, what, line

    def top(self):
        return '/' not in self.name


def covers(entry, name):
    """Whether a table entry (`x`, `x/y`, `x/.`) names that folder, or one above it."""
    return name == entry or name.startswith(entry + '/')


class Layers:
    def __init__(self, text):
        self.folders, self.faults, self.used = {}, [], set()
        for n, line in enumerate(text.split('\n'), 1):
            if line.strip() and not line.startswith('#'):
                self._read(n, line)
        for folder in self.folders.values():
            top = folder.name.split('/')[0]
            if top not in self.folders:
                self.faults.append(f'{folder.line}: {folder.name}, but no line for {top}')

    def _read(self, n, line):
        head, _, what = line.partition('|')
        names, colon, may = head.partition(':')
        names, may = names.split(), may.split()
        whats = [w.strip() for w in (what.split(';') if len(names) > 1 else [what])]
        if not colon or len(whats) not in (1, len(names)):
            self.faults.append(f'{n}: not of the form FOLDER...: MAY... | WHAT; WHAT...')
            return
        if len(names) > 1 and any('/' not in name for name in names):
            self.faults.append(f'{n}: a top-level folder has a line of its own')
        for entry in may:
            below = [f for f in self.folders if covers(entry, f)]
            if not below:
                self.faults.append(f'{n}: {entry} has no line above this one, of {names[0]}')
            elif any(covers(entry, name.rstrip('!')) for name in names):
                self.faults.append(f'{n}: {entry} is {names[0]} itself, or around it')
        for i, name in enumerate(names):
            pure, name = name.endswith('!'), name.rstrip('!')
            if not FOLDER.fullmatch(name) or name in self.folders:
                self.faults.append(f'{n}: {name} is no folder name, or has a line already')
                continue
            self.folders[name] = Folder(name, pure, may, whats[i if len(whats) > 1 else 0], n)

    def tops(self):
        return [f for f in self.folders.values() if f.top()]

    def below(self, top):
        """The lines of the folders in a top-level folder, `x/.` first."""
        return [f for f in self.folders.values() if f.name.startswith(top + '/')]

    def home(self, directory):
        """The line for files that lie in that directory itself, or None."""
        split = any(f.startswith(directory + '/') for f in self.folders)
        return self.folders.get(directory + '/.' if split else directory)

    def allows(self, folder, target):
        """Whether files of one folder may include another's; the entry that says so is used then."""
        if folder is target:
            return True
        parts = folder.name.split('/')
        lines = ['/'.join(parts[:i]) for i in range(1, len(parts))] + [folder.name]
        for name in lines:  # the widest first, so that what it allows already is not listed again
            for entry in self.folders[name].may if name in self.folders else ():
                if covers(entry, target.name):
                    self.used.add((name, entry))
                    return True
        return False

    def unused(self):
        for folder in self.folders.values():
            for entry in folder.may:
                if (folder.name, entry) not in self.used:
                    yield folder, entry
