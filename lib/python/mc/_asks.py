"""Short questions to the master, for a queue: what each fills in, and what it says."""
from __future__ import annotations

import ctypes
from array import array
from ctypes import byref, c_size_t, c_uint32, c_uint64
from typing import Any, List, Optional, Sequence, Tuple

from ._abi import mc_each, mc_key
from ._calls import Call
from ._options import milliseconds
from ._pack import FlatKeys, Key, encode, pack_keys
from .blocks import Hashes, hash_count, joined
from .buffers import span
from .errors import CODES, Result


class Size(Call):
    """Bytes of a value, which is leased."""

    def __init__(self, key: Key) -> None:
        self._name, self._bytes = encode(key), c_uint64()

    def begin(self, store: int, queue: Optional[int], tag: int) -> None:
        """Gives it to the library."""
        self.give('mc_store_size_async', store, queue, tag,
                  mc_key(span(self._name).address, len(self._name)), byref(self._bytes))

    def result(self) -> int:
        """Bytes."""
        return self._bytes.value


class Match(Call):
    """Leading keys that are there; they are leased."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._flat, self._matched = FlatKeys(keys), c_size_t()

    def begin(self, store: int, queue: Optional[int], tag: int) -> None:
        """Gives it to the library."""
        self.give('mc_store_match_async', store, queue, tag, self._flat.native,
                  byref(self._matched))

    def result(self) -> int:
        """How many."""
        return self._matched.value


class MatchBlocks(Call):
    """Leading blocks that are there under all prefixes; they are leased."""

    def __init__(self, prefixes: Sequence[Key], hashes: Hashes, hash_bytes: int) -> None:
        self._prefixes, self._hashes = pack_keys(prefixes), joined(hashes)
        self._size, self._count = hash_bytes, hash_count(self._hashes, hash_bytes)
        self._matched = c_size_t()

    def begin(self, store: int, queue: Optional[int], tag: int) -> None:
        """Gives it to the library."""
        self.give('mc_store_match_blocks_async', store, queue, tag, self._prefixes.address,
                  self._prefixes.count, self._hashes.address, self._size,
                  self._count, byref(self._matched))

    def result(self) -> int:
        """How many."""
        return self._matched.value


class Remove(Call):
    """Removes keys."""

    def __init__(self, keys: Sequence[Key], force: bool) -> None:
        self.keys, self._force = keys, force
        self._flat = FlatKeys(keys)
        self._codes = array('I', bytes(4 * self._flat.count))

    def begin(self, store: int, queue: Optional[int], tag: int) -> None:
        """Gives it to the library."""
        self.give('mc_store_remove_async', store, queue, tag, self._flat.native, self._force,
                  self._codes.buffer_info()[0])

    def result(self) -> dict[Key, Result]:
        """For each key."""
        return {key: Result(CODES[code]) for key, code in zip(self.keys, self._codes)}


class Keys(Call):
    """Keys that begin so, in order, and how large their values are; at most `limit`."""

    def __init__(self, prefix: Key, limit: Optional[int]) -> None:
        self._prefix, self._limit = encode(prefix), limit
        self._found: List[Tuple[bytes, int]] = []
        self._each = mc_each(self._took)  # kept until the call has ended

    def _took(self, _: Any, key: int, key_bytes: int, size: int) -> int:
        if self._limit is None or len(self._found) < self._limit:
            self._found.append((ctypes.string_at(key, key_bytes), size))
        return int(self._limit is not None and len(self._found) >= self._limit)

    def begin(self, store: int, queue: Optional[int], tag: int) -> None:
        """Gives it to the library."""
        self.give('mc_store_list_async', store, queue, tag, self._prefix, len(self._prefix),
                  self._each, None)

    def result(self) -> List[Tuple[bytes, int]]:
        """The keys."""
        return self._found


class RemovePrefix(Call):
    """Removes the keys that begin so; `removed` counts them, also when some stay."""

    def __init__(self, prefix: Key, force: bool) -> None:
        self._prefix, self._force, self._removed = encode(prefix), force, c_uint64()

    def begin(self, store: int, queue: Optional[int], tag: int) -> None:
        """Gives it to the library."""
        self.give('mc_store_remove_prefix_async', store, queue, tag, self._prefix,
                  len(self._prefix), self._force, byref(self._removed))

    def result(self) -> int:
        """How many."""
        return self._removed.value


class HealthOf(Call):
    """Whether the master answers, and what the pool has."""

    def __init__(self, timeout: float) -> None:
        self._timeout = milliseconds(timeout)
        self._nodes, self._free = c_uint32(), c_uint64()

    def begin(self, store: int, queue: Optional[int], tag: int) -> None:
        """Gives it to the library."""
        self.give('mc_store_health_async', store, queue, tag, self._timeout, byref(self._nodes),
                  byref(self._free))

    def result(self) -> tuple[int, int]:
        """Nodes that are ready, and free bytes."""
        return self._nodes.value, self._free.value
