"""python3 -m mc.compat.mooncake run PROGRAM [WORD...]: runs it with `mooncake` being mc's."""
from __future__ import annotations

import runpy
import sys

from . import install


def main(words: list[str]) -> int:
    """The exit status."""
    if len(words) < 2 or words[0] != 'run':
        print(__doc__, file=sys.stderr)
        return 2
    install()
    if words[1] == '-m' and len(words) > 2:
        sys.argv = words[2:]
        runpy.run_module(words[2], run_name='__main__', alter_sys=True)
    else:
        sys.argv = words[1:]
        runpy.run_path(words[1], run_name='__main__')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
