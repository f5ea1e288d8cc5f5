"""Words that do not come back: private words for what has a public name. docs/glossary.md has both.

They are looked for in comments, identifiers (split at _ and at capitals), texts, tests, scripts and
docs; not in what tests/frozen/list.txt keeps as it is, nor in what CHANGELOG.md says of the past.
"""
import re

WORDS = {  # pattern, as whole words: what to say instead
    r'graves?': 'tombstone',
    r'bury|buried|burial': 'add a tombstone, deleted',
    r'mourns?': 'tombstone',
    r'courtesy': 'back off, yield',
    r'lookout': 'busy poll',
    r'desks?': 'cache slot',
    r'caretaker': 'background thread',
    r'errands?': 'job, defer',
    r'somebody|anybody|whoever': 'name the actor',
    r'injur(?:e|es|ies|y)': 'inject a fault',
    r'tellings?': 'report',
    r'shelf': 'size class',
    r'sought': 'looked up',
    r'to be had': 'available',
    r'at hand': 'local, ready',
    r'strangers?': 'unknown peer, client',
    r'let go': 'release',
    r'puts right': 'repairs',
    r'comes home': 'completes',
    r'tides?': 'pressure; diurnal rate',
    r'foreign': 'external',
    r'lent|lend(?:s|ing)?': 'remote prefix, pin',
    r'of which': 'two sentences',
    r'(?:is|are) (?:told(?! apart)|asked)': 'name the actor',
}
BANNED = re.compile(r'\b(' + '|'.join(WORDS) + r')\b')
FROZEN = re.compile(r'--[a-z][a-z-]*|\b(?:mc|MC)_\w+')  # flags, metrics, environment
CAPITALS = re.compile(r'(?<=[a-z0-9])(?=[A-Z])|_')
SUFFIXES = ('.h', '.cc', '.cu', '.c', '.py', '.sh', '.inc', '.md', '.json', '')
FOLDERS = ('lib', 'cmd', 'tests', 'bench', 'scripts', 'docs', 'configs')
SELF = ('scripts/checks/words.py', 'tests/cli/tidy.sh', 'docs/glossary.md', 'docs/results.md')
SKIPPED = re.compile(r'/frozen/|/corpus/|^docs/decisions/')  # records, and others' bytes
LABELS = {'lend', 'lent', 'foreign'}  # values of metrics' labels and members, which stay
STRING = re.compile(r'"-*([\w:./-]+)\\?"|\.(lent)\b')


def frozen_strings(root):
    path = root / 'tests/frozen/list.txt'
    words = re.findall(r'[\w-]+', path.read_text()) if path.exists() else ()
    return LABELS | {w.strip('-') for w in words}


def check(root, faults):
    frozen = frozen_strings(root)

    def kept(match):
        return '' if (match[1] or match[2]) in frozen else match[0]

    for path in sorted(p for d in FOLDERS for p in (root / d).rglob('*') if p.is_file()):
        rel = path.relative_to(root).as_posix()
        if path.suffix not in SUFFIXES or rel in SELF or SKIPPED.search(rel):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for n, line in enumerate(text.split('\n'), 1):
            line = FROZEN.sub('', STRING.sub(kept, line))
            found = BANNED.search(CAPITALS.sub(' ', line).lower())
            if found:
                why = next(v for k, v in WORDS.items() if re.fullmatch(k, found[1]))
                faults.append(f'{rel}:{n}: "{found[1]}": say {why}')
