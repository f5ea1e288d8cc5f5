#!/usr/bin/env python3
"""tidy.py [ROOT]: checks what compilers do not, over lib, cmd, tests and bench.

Run by `make lint` and as a test. The rules are in scripts/checks, the layers in lib/layers.txt, and
violations that remain in scripts/exceptions.txt. docs/hacking.md lists them.
"""
import pathlib
import sys

sys.dont_write_bytecode = True  # a test does not write into the sources

import layers  # noqa: E402
from checks import classes, exceptions, folders, purity, python, source, text, words  # noqa: E402


def main(root):
    faults = []
    table = layers.Layers((root / 'lib/layers.txt').read_text())
    known = exceptions.Exceptions(root / 'scripts/exceptions.txt')
    sources = source.read_all(root)
    folders.check_includes(table, sources, faults)
    folders.check_sizes(root, faults)
    folders.check_circles(sources, known, faults)
    classes.check(sources, known, faults)
    purity.check(table, sources, faults)
    text.check(sources, faults)
    text.check_scripts(root, faults)
    python.check(root, faults)
    words.check(root, faults)
    print('\n'.join(faults) or f'tidy: {len(sources)} files')
    return bool(faults)


sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else '.').resolve()))
