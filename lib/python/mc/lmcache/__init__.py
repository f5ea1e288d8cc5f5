"""LMCache's chunks in mc's pool.

`McClient` is a native plugin of its multi-process server, `McConnectorAdapter` and `McConnector`
are a remote storage plugin. docs/engines.md says how to start them. `McClient` needs no LMCache.
"""
from __future__ import annotations

from typing import Any

from mc.lmcache.native import McClient

__all__ = ['McClient', 'McConnector', 'McConnectorAdapter']


def __getattr__(name: str) -> Any:
    if name in ('McConnector', 'McConnectorAdapter'):
        from mc.lmcache import remote

        return getattr(remote, name)
    raise AttributeError(f"module 'mc.lmcache' has no attribute {name!r}")
