"""The import name `mooncake` for mc's compatible modules: `store` and `engine`.

Where a real distribution of Mooncake is installed too, this package refuses to be imported.
"""
from __future__ import annotations

import importlib.metadata

REAL = ('mooncake-transfer-engine', 'mooncake-transfer-engine-non-cuda',
        'mooncake-transfer-engine-cuda13')


def _refuse_beside_the_real_one() -> None:
    for name in REAL:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        raise ImportError(f'mc-kv-mooncake and {name} {version} are both installed, and both are '
                          'named mooncake: uninstall one of them')


_refuse_beside_the_real_one()
