"""Pure code decides and never waits: no I/O, threads, locks or clock. The simulator shares it."""
import re

INCLUDES = re.compile(r'(io|http|rpc)/|base/mutex\.h|zmq|sys/|unistd|fcntl|'
                      r'(thread|mutex|atomic|condition_variable|fstream)$')
WORDS = re.compile(r'\bClock\b|\bLock lock\b|\bstd::atomic\b|\bwall_now\b')


def pure_sources(layers, sources):
    """(source, why): what is in `!` folders; X.h, X.cc, X_*.cc where X.h says Pure at its top."""
    product = [s for s in sources if s.product]
    claims = {}
    for source in product:
        if source.suffix == 'h' and re.search(r'\bPure\b', source.opening()):
            claims.setdefault(source.folder, []).append(source.stem)
    for source in product:
        home = layers.home(source.folder)
        if home and home.pure:
            yield source, f'{home.name} is a pure folder'
            continue
        for stem in claims.get(source.folder, ()):
            if source.stem == stem or source.suffix == 'cc' and source.stem.startswith(stem + '_'):
                yield source, f'{stem}.h says Pure'
                break


def check(layers, sources, faults):
    pure = list(pure_sources(layers, sources))
    names = {source.name for source, _ in pure}
    for source, why in pure:
        for n, _, include in source.includes:
            if INCLUDES.match(include) and include not in names:  # io/address.h is pure itself
                faults.append(f'{source.path}:{n}: {why}, yet this includes {include}')
        for n, line in enumerate(source.code().split('\n'), 1):
            found = WORDS.search(line)
            if found:
                faults.append(f'{source.path}:{n}: {why}, yet this says {found[0]}')
