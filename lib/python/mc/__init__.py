"""mc: a distributed store of KV caches and a transfer engine, over libmc.

`Store` puts, gets and finds values; `Engine` moves bytes between the memory of processes;
`mc.cluster` starts a cluster of its own for tests and notebooks. docs/python.md shows their use.
"""
from __future__ import annotations

from ._abi import lib as _lib
from .engine import Batch, Engine, Memory, Peer, Priority, Slice, State, Status
from .errors import (Busy, Code, Corrupt, Denied, Exists, Internal, Invalid, McError, NoSpace,
                     NotFound, Put, Result, Stale, Timeout, Unavailable, Unsupported)
from .store import Store

__version__: str = _lib.mc_version().decode()

__all__ = [
    'Batch', 'Busy', 'Code', 'Corrupt', 'Denied', 'Engine', 'Exists', 'Internal', 'Invalid',
    'McError', 'Memory', 'NoSpace', 'NotFound', 'Peer', 'Priority', 'Put', 'Result', 'Slice',
    'Stale', 'State', 'Status', 'Store', 'Timeout', 'Unavailable', 'Unsupported', '__version__',
]
