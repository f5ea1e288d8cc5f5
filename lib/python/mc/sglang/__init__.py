"""SGLang's hierarchical cache in mc's pool, by `--hicache-storage-backend dynamic`.

docs/engines.md says how to start it.
"""
from __future__ import annotations

from typing import Any

__all__ = ['McHiCache']


def __getattr__(name: str) -> Any:
    if name == 'McHiCache':
        from mc.sglang.hicache import McHiCache

        return McHiCache
    raise AttributeError(f"module 'mc.sglang' has no attribute {name!r}")
