"""Sessions of MooncakeDistributedStore: values that are read or put part by part.

A put session gathers the parts in memory of this process, and its end stores the value; the pool
has room for it or not only then.
"""
from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from ..._calls import Piece, PutKeys
from ...buffers import Span
from ...errors import McError
from ...options import PutOptions
from . import codes
from .config import ReplicateConfig, put_options
from .arguments import lists, storable

Pieces = Sequence[Sequence[int]]


class Sessions:
    """Mixed into MooncakeDistributedStore."""

    _store: Any

    def __init__(self) -> None:
        self._read: Set[Any] = set()
        self._written: Dict[Any, Tuple[bytearray, PutOptions]] = {}

    def _end_sessions(self) -> None:
        self._read.clear()
        self._written.clear()

    # ---- reads

    def batch_get_session_start(self, keys: Sequence[str]) -> List[int]:
        """Leases each, so that it stays: 0, or a code."""
        lists(keys)
        found = [min(self.get_size(key), 0) for key in keys]  # type: ignore[attr-defined]
        self._read.update(key for key, code in zip(keys, found) if code == 0)
        return found

    def batch_get_session_end(self, keys: Sequence[str]) -> int:
        """0. Leases end by themselves."""
        lists(keys)
        self._read.difference_update(keys)
        return 0 if self._store is not None else codes.NOT_SET_UP

    def batch_get_into_multi_buffer_ranges(self, keys: Sequence[str], all_buffer_ptrs: Pieces,
                                           all_sizes: Pieces, all_src_offsets: Pieces) -> List[int]:
        """Parts of values, several of each: their bytes, or a code. -600 outside a session."""
        if not lists(keys, all_buffer_ptrs, all_sizes, all_src_offsets):
            return [codes.INVALID] * len(keys)
        done = [codes.INVALID] * len(keys)
        asked = []
        for n, (key, *parts) in enumerate(zip(keys, all_buffer_ptrs, all_sizes, all_src_offsets)):
            if key not in self._read or not lists(*parts):
                continue
            if not parts[0]:
                done[n] = 0
            else:
                asked.append((n, key, [Piece(Span(to, size, None), begin)
                                       for to, size, begin in zip(*parts)]))
        if asked:
            codes_of = self._ranges([key for _, key, _ in asked],  # type: ignore[attr-defined]
                                    [pieces for *_, pieces in asked])
            for (n, *_), code in zip(asked, codes_of):
                done[n] = code
        return done

    # ---- puts

    def batch_put_session_start(self, keys: Sequence[str], sizes: Sequence[int],
                                config: Optional[ReplicateConfig] = None) -> List[int]:
        """0, or a code: -705 for a key that is there."""
        if self._store is None:
            return [codes.NOT_SET_UP] * len(keys)
        how = put_options(config, keys=len(keys), own=self._store.engine.address)
        if not lists(keys, sizes) or how.code or not all(sizes):
            return [how.code or codes.INVALID] * len(keys)
        done = []
        for key, size, options in zip(keys, sizes, how.each(len(keys))):
            code = 0 if storable(key) else codes.INVALID
            if code == 0 and (key in self._written or self._store.exists(key)):
                code = codes.EXISTS
            if code == 0:
                self._written[key] = (bytearray(size), options)
            done.append(code)
        return done

    def batch_put_from_multi_buffer_ranges(self, keys: Sequence[str], all_buffer_ptrs: Pieces,
                                           all_sizes: Pieces, all_dst_offsets: Pieces) -> List[int]:
        """Parts of values: the bytes that were taken, or -600."""
        if not lists(keys, all_buffer_ptrs, all_sizes, all_dst_offsets):
            return [codes.INVALID] * len(keys)
        return [self._part(key, *parts)
                for key, *parts in zip(keys, all_buffer_ptrs, all_sizes, all_dst_offsets)]

    def _part(self, key: str, froms: Sequence[int], sizes: Sequence[int],
              tos: Sequence[int]) -> int:
        if key not in self._written or not lists(froms, sizes, tos):
            return codes.INVALID
        value = self._written[key][0]
        if any(to < 0 or size < 0 or to + size > len(value) for to, size in zip(tos, sizes)):
            return codes.INVALID
        for at, size, to in zip(froms, sizes, tos):
            value[to:to + size] = (ctypes.c_char * size).from_address(at)
        return sum(sizes)

    def batch_put_session_end(self, keys: Sequence[str]) -> List[int]:
        """Stores them: 0, or a code for each."""
        lists(keys)
        done = {key: self._end(key) for key in dict.fromkeys(keys)}
        return [done[key] for key in keys]

    def _end(self, key: str) -> int:
        value, options = self._written.pop(key, (None, None))
        if value is None:
            return codes.INVALID
        call = PutKeys([key], [value], options)
        try:
            self._store._run(call)
            return codes.of_put(call.results.codes[0])
        except McError as e:
            return codes.of_error(e)

    def batch_put_session_revoke(self, keys: Sequence[str]) -> List[int]:
        """Forgets them: 0, or -600 for one that was not begun."""
        lists(keys)
        done = {key: 0 if self._written.pop(key, None) else codes.INVALID
                for key in dict.fromkeys(keys)}
        return [done[key] for key in keys]
