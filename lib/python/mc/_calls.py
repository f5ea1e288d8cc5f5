"""Calls on many values: the arrays of each, how it begins, and what became of it.

A store carries one out at once; a queue begins it, and it ends later. Either way the call holds
all memory that the library uses.
"""
from __future__ import annotations

from array import array
from itertools import chain, starmap
from typing import Any, Iterable, List, NamedTuple, Optional, Sequence

from ._abi import check, unchecked
from ._handle import Handle
from ._options import milliseconds
from ._pack import Buffers, FlatKeys, Key, Results, pack_keys
from .buffers import Span, owned, span, spans
from .errors import CODES, PUTS, Result
from .options import PutOptions, native


class Call:
    """One call. `begin` with a queue returns at once; without one it waits."""

    uses: Sequence[Handle] = ()  # beside the store; they stay open until the call is done
    memory: Any = None  # of the caller
    limits: Any = None  # of this call, if it has some
    wait = 0.0  # seconds for values that are not stored, where a queue can carry it out
    said: Sequence[int] = ()  # the code by which the library took it, or refused it

    def give(self, name: str, *arguments: Any) -> None:
        """To a function of the library. What it said is noted in the same step, so that it is
        known when a signal's handler raises behind it."""
        said: List[int] = []
        self.said = said
        said.extend(starmap(getattr(unchecked, name), (arguments,)))
        check(said[0])

    @property
    def given(self) -> bool:
        """Whether the library has it."""
        return bool(self.said) and not self.said[0]

    def begin(self, store: int, queue: Optional[int], tag: int) -> None:
        """Gives it to the library."""
        raise NotImplementedError

    def end(self) -> None:
        """The library uses nothing of it any more."""
        self.memory = None

    def result(self) -> Any:
        """What became of it, once it is done."""
        raise NotImplementedError


class PutKeys(Call):
    """Values by key."""

    def __init__(self, keys: Sequence[Key], values: Iterable[Any],
                 options: Optional[PutOptions] = None) -> None:
        self.keys = keys
        self._options = native(options)
        self._flat = FlatKeys(keys)
        self.memory = Buffers([spans(value) for value in values])
        self.uses = self.memory.owned
        self.results = Results(self._flat.count)

    def begin(self, store: int, queue: Optional[int], tag: int) -> None:
        """Gives it to the library."""
        b = self.memory
        self.give('mc_store_put_keys', store, self._flat.native, b.buffers.buffer_info()[0],
                  b.ends.buffer_info()[0], queue, tag, self._options, self.results.address)

    def result(self) -> dict[Key, Result]:
        """For each key."""
        r = self.results
        return {key: Result(CODES[code], size, None if code else PUTS[outcome])
                for key, code, outcome, size in zip(self.keys, r.codes, r.flags, r.bytes)}


class GetKeys(Call):
    """Values into buffers, by key."""

    def __init__(self, keys: Sequence[Key], values: Iterable[Any], wait: float = 0.0) -> None:
        self.keys = keys
        self.wait, self._wait = wait, milliseconds(wait)
        self._flat = FlatKeys(keys)
        self.memory = Buffers([spans(value, writable=True) for value in values])
        self.uses = self.memory.owned
        self.results = Results(self._flat.count)

    def begin(self, store: int, queue: Optional[int], tag: int) -> None:
        """Gives it to the library."""
        b = self.memory
        self.give('mc_store_get_keys', store, self._flat.native, b.buffers.buffer_info()[0],
                  b.ends.buffer_info()[0], queue, tag, self._wait, self.results.address)

    def result(self) -> dict[Key, Result]:
        """For each key."""
        r = self.results
        return {key: Result(CODES[code], size) for key, code, size in zip(self.keys, r.codes,
                                                                          r.bytes)}


class Piece(NamedTuple):
    """A part of a value and where it goes: `rows` pieces of `bytes`, `value_stride` apart in the
    value from `offset` on, `local_stride` apart in `into`."""

    into: Any
    offset: int = 0
    bytes: int = 0  # 0: as many as `into` has
    rows: int = 1
    local_stride: int = 0
    value_stride: int = 0


class GetRanges(Call):
    """Parts of values; a key may be there several times."""

    def __init__(self, keys: Sequence[Key], pieces: Sequence[Sequence[Piece]],
                 wait: float = 0.0) -> None:
        self.keys = keys
        self._wait = milliseconds(wait)
        named = pack_keys(keys)
        places = [[span(piece.into, writable=True) for piece in each] for each in pieces]
        flat = array('Q', [word for each, found in zip(pieces, places)
                           for piece, place in zip(each, found) for word in _words(piece, place)])
        items = array('Q', bytes(32 * named.count))
        items[0::4], items[1::4] = named.keep[0][0::2], named.keep[0][1::2]
        at, begin = flat.buffer_info()[0], 0
        for n, each in enumerate(pieces):
            items[4 * n + 2], items[4 * n + 3] = at + 48 * begin, len(each)
            begin += len(each)
        self.memory = (named, places, flat, items)
        self.uses = owned(chain.from_iterable(places))
        self.results = Results(named.count)

    def begin(self, store: int, queue: Optional[int], tag: int) -> None:
        """Gives it to the library, which knows no queue for it."""
        self.give('mc_store_get_ranges', store, self.memory[3].buffer_info()[0], self.results.count,
                  self._wait, self.results.address)

    def result(self) -> dict[Key, Result]:
        """For each key."""
        r = self.results
        return {key: Result(CODES[code], size) for key, code, size in zip(self.keys, r.codes,
                                                                          r.bytes)}


def _words(piece: Piece, place: Span) -> tuple[int, ...]:
    size = piece.bytes or place.bytes
    if piece.offset < 0 or piece.rows < 1 or piece.bytes < 0:
        raise ValueError(f'a piece of {piece.rows} times {piece.bytes} bytes from {piece.offset} '
                         'on: want 1 row or more, and no negative numbers')
    if (piece.rows - 1) * piece.local_stride + size > place.bytes:
        raise ValueError(f'a piece of {piece.rows} times {size} bytes into {place.bytes}')
    return (place.address, piece.offset, size, piece.rows, piece.local_stride, piece.value_stride)


class ExistsKeys(Call):
    """Which keys are stored."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._flat = FlatKeys(keys)
        self._found = array('B', bytes(self._flat.count))

    def begin(self, store: int, queue: Optional[int], tag: int) -> None:
        """Gives it to the library."""
        self.give('mc_store_exists_keys', store, self._flat.native, queue, tag,
                  self._found.buffer_info()[0])

    def result(self) -> list[bool]:
        """For each key."""
        view: Any = memoryview(self._found).cast('?')
        found: list[bool] = view.tolist()
        return found
