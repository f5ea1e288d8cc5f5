"""Puts of MooncakeDistributedStore: from objects and from memory by address, kept or replaced."""
from __future__ import annotations

from typing import Any, List, Optional, Sequence

from ..._calls import PutKeys
from ..._pack import Key, encode
from . import codes
from .arguments import lists
from .coded import Pieces, bytes_of, coded, each, span, spans
from .config import ReplicateConfig, put_options


class Puts:
    """Mixed into MooncakeDistributedStore."""

    _store: Any

    def _put(self, keys: Sequence[Key], values: Sequence[Any], config: Optional[ReplicateConfig],
             replace: bool = False, last: bool = False) -> List[int]:
        assert self._store is not None
        how = put_options(config, replace, len(keys), self._store.engine.address)
        if not lists(keys, values):
            return [codes.INVALID] * len(keys)
        full = [bool(bytes_of(value)) for value in values]  # what has no bytes is not stored: -600
        if how.code or not all(full):
            list(map(encode, keys))  # those are not looked at below
        if how.code:
            return [how.code if some else codes.INVALID for some in full]
        pairs = [(key, value) for key, value, some in zip(keys, values, full) if some]
        once = dict(pairs if last else reversed(pairs))  # of a key that is there twice
        done: dict[Key, int] = {}
        for options, names in how.shares(keys):
            names = [key for key in names if key in once and key not in done]
            call = PutKeys(names, [once[key] for key in names], options)
            self._store._run(call)
            done.update(zip(names, map(codes.of_put, call.results.codes)))
        return [done[key] if some else codes.INVALID for key, some in zip(keys, full)]

    def _put_all(self, keys: Sequence[Key], values: Sequence[Any],
                 config: Optional[ReplicateConfig], replace: bool = False) -> int:
        if not lists(keys, values) or not all(map(bytes_of, values)):
            list(map(encode, keys))
            put_options(config)
            return codes.INVALID  # all of it, as theirs
        done = self._put(keys, values, config, replace)
        return next((code for code in done if code), 0)

    def _put_some(self, key: Key, value: Any, config: Optional[ReplicateConfig],
                  replace: bool = False) -> int:
        """One value. Of no bytes it is not stored, and 0, as theirs."""
        return self._put_all([key], [value], config, replace) if bytes_of(value) else 0

    @coded()
    def put(self, key: str, value: Any, config: Optional[ReplicateConfig] = None) -> Any:
        """A key that is there is kept: 0."""
        return self._put_all([key], [memoryview(value)], config)

    @coded()
    def put_parts(self, key: str, *parts: Any, config: Optional[ReplicateConfig] = None) -> Any:
        """One value of several buffers."""
        return self._put_some(key, list(map(memoryview, parts)), config)

    @coded()
    def put_batch(self, keys: Sequence[str], values: Sequence[Any],
                  config: Optional[ReplicateConfig] = None) -> Any:
        """The first failure, else 0."""
        return self._put_all(keys, list(map(memoryview, values)), config)

    @coded()
    def put_from(self, key: str, buffer_ptr: int, size: int,
                 config: Optional[ReplicateConfig] = None) -> Any:
        """From memory by address."""
        return self._put_some(key, span(buffer_ptr, size), config)

    @coded(each)
    def batch_put_from(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int],
                       config: Optional[ReplicateConfig] = None) -> Any:
        """From memory by address; a code for each."""
        return self._put_at(keys, buffer_ptrs, sizes, config, False)

    def _put_at(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int],
                config: Optional[ReplicateConfig], replace: bool) -> List[int]:
        if not lists(keys, buffer_ptrs, sizes):
            return [codes.INVALID] * len(keys)
        return self._put(keys, spans(buffer_ptrs, sizes), config, replace, last=True)

    @coded()
    def put_from_with_metadata(self, key: str, buffer_ptr: int, metadata_buffer_ptr: int, size: int,
                               metadata_size: int, config: Optional[ReplicateConfig] = None) -> Any:
        """The metadata comes first in the value."""
        parts = [span(metadata_buffer_ptr, metadata_size), span(buffer_ptr, size)]
        return self._put_some(key, parts if size else [], config)

    @coded(lambda _: [])
    def batch_put_from_multi_buffers(self, keys: Sequence[str], all_buffer_ptrs: Pieces,
                                     all_sizes: Pieces,
                                     config: Optional[ReplicateConfig] = None) -> Any:
        """Values that lie in several places each; a code for each."""
        if not lists(keys, all_buffer_ptrs, all_sizes) or not all(
                map(lists, all_buffer_ptrs, all_sizes)):
            return [codes.INVALID] * len(keys)
        return self._put(keys, list(map(spans, all_buffer_ptrs, all_sizes)), config)

    @coded()
    def upsert(self, key: str, value: Any, config: Optional[ReplicateConfig] = None) -> Any:
        """As put; what is there is replaced."""
        return self._put_all([key], [memoryview(value)], config, True)

    @coded()
    def upsert_parts(self, key: str, *parts: Any, config: Optional[ReplicateConfig] = None) -> Any:
        """As put_parts; what is there is replaced."""
        return self._put_some(key, list(map(memoryview, parts)), config, True)

    @coded()
    def upsert_batch(self, keys: Sequence[str], values: Sequence[Any],
                     config: Optional[ReplicateConfig] = None) -> Any:
        """As put_batch; what is there is replaced."""
        return self._put_all(keys, list(map(memoryview, values)), config, True)

    @coded()
    def upsert_from(self, key: str, buffer_ptr: int, size: int,
                    config: Optional[ReplicateConfig] = None) -> Any:
        """As put_from; what is there is replaced."""
        return self._put_some(key, span(buffer_ptr, size), config, True)

    @coded(each)
    def batch_upsert_from(self, keys: Sequence[str], buffer_ptrs: Sequence[int],
                          sizes: Sequence[int], config: Optional[ReplicateConfig] = None) -> Any:
        """As batch_put_from; what is there is replaced."""
        return self._put_at(keys, buffer_ptrs, sizes, config, True)
