"""Registers memory by the mapping that it lies in, at first sight.

Engines hand out pieces of one large pool and do not say where the pool is. What is in a mapping
below 16 MiB, or on the heap, is not registered: puts and gets work all the same, and slower.
Thread: any.
"""
from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from typing import Iterable, Iterator

from .buffers import Span
from .engine import Memory
from .errors import McError
from .store import Store

_LEAST = 16 << 20
_MOST = 64  # registrations
_MISSES = 256  # addresses in vain, after which nobody looks any more
_log = logging.getLogger('mc')


def _mappings() -> Iterator[tuple[int, int]]:
    with open('/proc/self/maps', encoding='ascii', errors='replace') as lines:
        for line in lines:
            words = line.split()
            if words[1].startswith('rw') and (len(words) < 6 or not words[5].startswith('[')):
                begin, _, end = words[0].partition('-')
                yield int(begin, 16), int(end, 16)


class Mappings:
    """Memory of a store's client that was seen."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._memory: list[Memory] = []
        self._misses = 0

    def see(self, spans: Iterable[Span]) -> None:
        """Registers what they lie in, unless it was."""
        with self._lock:
            for span in spans:
                if not self._has(span) and self._misses < _MISSES:
                    self._find(span)

    @property
    def bytes(self) -> int:
        """Registered."""
        return sum(end - begin for begin, end in zip(self._begins, self._ends))

    def close(self) -> None:
        """Undoes it. No call may use the memory."""
        with self._lock:
            for memory in self._memory:
                memory.close()
            self._memory, self._begins, self._ends = [], [], []
            self._misses = _MISSES

    def _has(self, span: Span) -> bool:
        at = bisect_right(self._begins, span.address) - 1
        return at >= 0 and span.address + span.bytes <= self._ends[at]

    def _find(self, span: Span) -> None:
        for begin, end in _mappings():
            if begin <= span.address and span.address + span.bytes <= end:
                if end - begin >= _LEAST and len(self._memory) < _MOST and self._add(begin, end):
                    return
        self._misses += 1

    def _add(self, begin: int, end: int) -> bool:
        try:
            memory = self._store.register(Span(begin, end - begin, None))
        except McError as e:
            _log.info('mc: %d MiB at %#x are not registered: %s', (end - begin) >> 20, begin, e)
            return False
        at = bisect_right(self._begins, begin)
        self._begins.insert(at, begin)
        self._ends.insert(at, end)
        self._memory.append(memory)
        return True
