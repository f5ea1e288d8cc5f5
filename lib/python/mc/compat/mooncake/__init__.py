"""Mooncake's Python modules, `store` and `engine`, over mc.

Code that says `from mooncake.store import MooncakeDistributedStore` reaches them by one of: the
wheel `mc-kv-mooncake`; `python3 -m mc.compat.mooncake run PROGRAM`; MC_MOONCAKE_SHIM=1 where the
wheel mc-kv is installed. docs/python.md has what differs.
"""
from __future__ import annotations

import sys


def install() -> None:
    """Makes `import mooncake` mean this package, in this process."""
    from . import engine, store
    sys.modules['mooncake'] = sys.modules[__name__]
    sys.modules['mooncake.store'] = store
    sys.modules['mooncake.engine'] = engine
