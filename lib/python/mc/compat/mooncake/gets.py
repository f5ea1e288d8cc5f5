"""Reads of MooncakeDistributedStore: as objects, and into memory by address."""
from __future__ import annotations

from typing import Any, List, Optional, Sequence

from ..._calls import GetKeys, GetRanges, Piece
from ..._pack import Key
from ...buffers import span as span_of
from . import codes
from .arguments import lists
from .coded import Pieces, coded, each, of_get, span, spans


class BufferHandle(bytearray):
    """A value in memory of its own."""

    def ptr(self) -> int:
        """Where it lies."""
        return span_of(self, writable=True).address

    def size(self) -> int:
        """How large it is."""
        return len(self)


class Gets:
    """Mixed into MooncakeDistributedStore."""

    _store: Any

    def get_size(self, key: str) -> Any:
        """Bytes, or a code."""
        raise NotImplementedError

    def _registered(self, address: int, size: int) -> bool:
        raise NotImplementedError

    def _get(self, keys: Sequence[Key], values: Sequence[Any]) -> List[int]:
        """Bytes of each, or its code."""
        assert self._store is not None
        call = GetKeys(keys, values)
        self._store._run(call)
        return [of_get(code, key) if code else size
                for code, size, key in zip(call.results.codes, call.results.bytes, keys)]

    @coded(b'')
    def _bytes(self, key: str) -> Any:
        assert self._store is not None
        return self._store.get(key)

    def get(self, key: str) -> bytes:
        """The value; b'' when it is absent or not readable."""
        value = self._bytes(key)
        return value if isinstance(value, bytes) else b''

    def get_batch(self, keys: Sequence[str]) -> List[bytes]:
        """The values, b'' for those that are absent or not readable; one b'' for no keys."""
        lists(keys)
        return [self.get(key) for key in keys] or [b'']

    def get_buffer(self, key: str) -> Optional[BufferHandle]:
        """The value in memory of its own; None when it is absent or not readable."""
        size = self.get_size(key)
        if size < 0:
            return None
        handle = BufferHandle(size)
        return handle if self._get_into([key], [handle]) == [size] else None

    def batch_get_buffer(self, keys: Sequence[str]) -> List[Optional[BufferHandle]]:
        """As get_buffer, for each."""
        lists(keys)
        return [self.get_buffer(key) for key in keys]

    @coded(each)
    def _get_into(self, keys: Sequence[Key], values: Sequence[Any]) -> Any:
        return self._get(keys, values)

    @coded()
    def get_into(self, key: str, buffer_ptr: int, size: int) -> Any:
        """The value's bytes, or a code."""
        return self._get([key], [span(buffer_ptr, size)])[0]

    @coded(each)
    def batch_get_into(self, keys: Sequence[str], buffer_ptrs: Sequence[int],
                       sizes: Sequence[int]) -> Any:
        """For each the value's bytes, or a code."""
        if not lists(keys, buffer_ptrs, sizes):
            return [codes.INVALID] * len(keys)
        return self._get(keys, spans(buffer_ptrs, sizes))

    @coded(lambda _: [])
    def batch_get_into_multi_buffers(self, keys: Sequence[str], all_buffer_ptrs: Pieces,
                                     all_sizes: Pieces,
                                     prefer_alloc_in_same_node: bool = False) -> Any:
        """Values into several places each: their bytes, or a code. The places are as large as the
        value, or it is -800 (theirs has moved nothing then, ours may have)."""
        if not lists(keys, all_buffer_ptrs, all_sizes):
            return [codes.INVALID] * len(keys)
        done = self._get(keys, list(map(spans, all_buffer_ptrs, all_sizes)))
        return [codes.MOVED_OTHER if code >= 0 and code != sum(sizes) else code
                for code, sizes in zip(done, all_sizes)]

    @coded(each)
    def _ranges(self, keys: Sequence[Key], pieces: Sequence[Sequence[Piece]]) -> Any:
        assert self._store is not None
        call = GetRanges(keys, pieces)
        self._store._run(call)
        return [of_get(code, key) if code else size
                for code, size, key in zip(call.results.codes, call.results.bytes, keys)]

    def get_into_ranges(self, buffer_ptrs: Sequence[int], all_keys: Sequence[Sequence[str]],
                        all_dst_offsets: Sequence[Pieces], all_src_offsets: Sequence[Pieces],
                        all_sizes: Sequence[Pieces]) -> List[List[List[int]]]:
        """Parts of values, by buffer, key and fragment: bytes or a code. The buffers are
        registered, and lists that do not fit each other are -600 throughout."""
        whole = lists(buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, all_sizes) and all(
            lists(*each) and all(map(lists, *each[1:]))
            for each in zip(all_keys, all_dst_offsets, all_src_offsets, all_sizes))
        if not whole:
            return [[[codes.INVALID for _ in places] for places in of_key]
                    for of_key in all_dst_offsets]
        asked, pieces = [], []
        for base, keys, *parts in zip(buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets,
                                      all_sizes):
            for key, *fragments in zip(keys, *parts):
                for to, begin, size in zip(*fragments):
                    known = self._registered(base + to, size)
                    asked.append(key if known else None)
                    if known:
                        pieces.append([Piece(span(base + to, size), begin)])
        done = iter(self._ranges([key for key in asked if key is not None], pieces))
        each = (codes.INVALID if key is None else next(done) for key in asked)
        return [[[next(each) for _ in sizes] for sizes in of_key] for of_key in all_sizes]
