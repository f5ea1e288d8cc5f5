"""Keys, buffers and results as flat arrays: what the library takes, made without an object an item.

The structures of the C interface are arrays of words, so `array` holds them. Whatever keeps a
packed thing keeps all that it points to.
"""
from __future__ import annotations

from array import array
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any, Optional, Sequence, Union

from ._abi import mc_keys
from .buffers import Span, owned, span

Key = Union[str, bytes]


def encode(key: Key) -> bytes:
    """A key as the store has it: text is UTF-8, other bytes as `list` tells them."""
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return key.encode('utf-8', 'surrogateescape')
    raise TypeError(f'a key is text or bytes, not {type(key).__name__}')


def decode(key: bytes) -> str:
    """A key as text, from which `encode` makes the same bytes."""
    return key.decode('utf-8', 'surrogateescape')


def flat(keys: Sequence[Key]) -> tuple[bytes, 'array[int]']:
    """All keys in a row, and where each ends."""
    try:
        text = ''.join(keys)  # type: ignore[arg-type]
    except TypeError:
        text = '\xff'
    if text.isascii():
        size = len(next(iter(keys), ''))
        if keys and _even(keys, size, text):  # as keys of blocks are
            return text.encode(), _even_ends(size, len(keys))
        return text.encode(), array('I', accumulate(map(len, keys)))
    coded = [encode(key) for key in keys]
    return b''.join(coded), array('I', accumulate(map(len, coded)))


def _even(keys: Sequence[str], size: int, text: str) -> bool:
    """Whether all keys have this size. Faster than asking each for its own: with a NUL after each
    the NULs are where they shall be, and there are no others."""
    if len(text) != size * len(keys) or '\0' in text:
        return False
    return '\0'.join(keys)[size::size + 1] == _nuls(len(keys) - 1)


@lru_cache(maxsize=64)
def _nuls(count: int) -> str:
    return '\0' * count


@lru_cache(maxsize=64)
def _even_ends(size: int, count: int) -> 'array[int]':
    """Where keys of one size end. Nobody changes it."""
    return array('I', range(size, size * count + 1, size) if size else [0] * count)


class FlatKeys:
    """An `mc_keys`."""

    __slots__ = ('count', 'native', '_ends')

    def __init__(self, keys: Sequence[Key]) -> None:
        joined, self._ends = flat(keys)
        self.count = len(self._ends)
        self.native = mc_keys(joined, self._ends.buffer_info()[0], self.count)


class Packed:
    """Structures in a row: where they begin, how many, and what they point to."""

    __slots__ = ('address', 'count', 'keep')

    def __init__(self, address: int, count: int, keep: Any) -> None:
        self.address, self.count, self.keep = address, count, keep


def pack_keys(keys: Sequence[Key]) -> Packed:
    """`mc_key` for each."""
    joined, ends = flat(keys)
    base = span(joined).address
    words = array('Q', bytes(16 * len(ends)))
    starts = array('I', [0]) + ends[:-1] if ends else ends
    words[0::2] = array('Q', [base + start for start in starts])
    words[1::2] = array('Q', [end - start for start, end in zip(starts, ends)])
    return Packed(words.buffer_info()[0], len(ends), (words, joined))


class Buffers:
    """`mc_buffer` for each piece of memory of each value, and where each value's end."""

    __slots__ = ('buffers', 'ends', 'keep', 'owned')

    def __init__(self, values: Sequence[Sequence[Span]]) -> None:
        self.keep = values
        self.owned = owned(chain.from_iterable(values))
        self.buffers = array('Q', [word for value in values for part in value
                                   for word in (part.address, part.bytes)])
        self.ends = array('I', accumulate(map(len, values)))


class Results:
    """`mc_put_result` or `mc_get_result` for each item: a code, a flag and bytes."""

    __slots__ = ('words', 'count')

    def __init__(self, count: int) -> None:
        self.count = count
        self.words = array('I', bytes(16 * count))

    @property
    def address(self) -> int:
        """Where the library writes them."""
        return self.words.buffer_info()[0]

    @property
    def codes(self) -> 'array[int]':
        """A number of `Code` for each item."""
        return self.words[0::4]

    @property
    def flags(self) -> 'array[int]':
        """The outcome of each put, or the flags of each get."""
        return self.words[1::4]

    @property
    def bytes(self) -> 'array[int]':
        """Of each value."""
        return array('Q', self.words.tobytes())[1::2]

    def failed(self) -> list[int]:
        """Which items did not succeed."""
        codes = self.codes
        if not any(codes):
            return []
        return [n for n, code in enumerate(codes) if code]

    def __len__(self) -> int:
        return self.count


def address_of(words: Optional['array[int]']) -> Optional[int]:
    """Of an array; None has none."""
    return None if words is None else words.buffer_info()[0]
