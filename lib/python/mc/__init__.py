"""mc: a distributed store of KV caches and a transfer engine, over libmc.

`Store` puts, gets and finds values; `Engine` moves bytes between the memory of processes;
`mc.cluster` starts a cluster of its own for tests and notebooks. docs/python.md shows their use.
"""
from __future__ import annotations

from ._abi import lib as _lib
from ._calls import Piece
from ._log import use_logging
from ._pack import Results
from .batch import Batch, Prepared, Priority, State, Status
from .blocks import KvLayout, Region
from .engine import Engine, Memory, Notice, Peer, Slice
from .errors import (Busy, Code, Corrupt, Denied, Exists, Internal, Invalid, McError, NoSpace,
                     NotFound, Put, Result, Stale, Timeout, Unavailable, Unsupported)
from .options import PutOptions
from .queue import Flight, Queue
from .store import Health, Listed, Offered, Place, Store, features

__version__: str = _lib.mc_version().decode()

__all__ = [
    'Batch', 'Busy', 'Code', 'Corrupt', 'Denied', 'Engine', 'Exists', 'Flight', 'Health',
    'Internal', 'Invalid', 'KvLayout', 'Listed', 'McError', 'Memory', 'NoSpace', 'NotFound',
    'Notice', 'Offered', 'Peer', 'Piece', 'Place', 'Prepared', 'Priority', 'Put', 'PutOptions',
    'Queue', 'Region', 'Result', 'Results', 'Slice', 'Stale', 'State', 'Status', 'Store', 'Timeout',
    'Unavailable', 'Unsupported', '__version__', 'features', 'use_logging',
]
