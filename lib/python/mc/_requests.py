"""Requests of the transfer engine as a flat array: an `mc_request` is twelve words.

`array` holds them, so that a request costs no object of its own, and many are added in one step.
"""
from __future__ import annotations

from array import array
from operator import add
from typing import Any, Sequence, Union

from ._abi import CONSTANTS
from .buffers import Span

READ, WRITE = CONSTANTS['MC_READ'], CONSTANTS['MC_WRITE']
_WORDS = 12  # op and priority, segment and timeout, local, offset, bytes, rows, strides, zeros
Numbers = Union[Sequence[int], Any]  # a list, a tuple, an array, numpy


def words_of(op: int, local: Span, segment: int, offset: int, priority: int = 0,
             timeout_ms: int = 0) -> 'array[int]':
    """One request."""
    if offset < 0:
        raise ValueError(f'offset {offset} is negative')
    return array('Q', (op | priority << 32, segment | timeout_ms << 32, local.address, offset,
                       local.bytes, 0, 0, 0, 0, 0, 0, 0))


def _column(what: str, numbers: Numbers, count: int) -> 'array[int]':
    if isinstance(numbers, int):
        numbers = (numbers,) * count
    try:
        column = array('Q', numbers)
    except OverflowError:
        raise ValueError(f'{what}: one is negative or beyond 64 bits') from None
    if len(column) != count:
        raise ValueError(f'{what}: {len(column)} of them for {count} requests')
    return column


class Requests:
    """Requests that were not submitted yet, and what they touch."""

    __slots__ = ('words', 'keep', 'segments')

    def __init__(self) -> None:
        self.words = array('Q')
        self.keep: list[Span] = []
        self.segments: set[int] = set()

    def __len__(self) -> int:
        return len(self.words) // _WORDS

    @property
    def address(self) -> int:
        """Of the array, until the next request is added."""
        return self.words.buffer_info()[0]

    def add(self, op: int, local: Span, segment: int, offset: int, priority: int,
            timeout_ms: int) -> None:
        """One request."""
        self.words += words_of(op, local, segment, offset, priority, timeout_ms)
        self.keep.append(local)
        self.segments.add(segment)

    def add_many(self, op: int, local: Span, segment: int, here: Numbers, there: Numbers,
                 sizes: Numbers, priority: int, timeout_ms: int) -> int:
        """One for each number of `here`, an offset in `local`. Returns how many."""
        if isinstance(here, int):
            raise TypeError('offsets of local memory are a list of numbers')
        count = len(here)
        inside = _column('offsets of local memory', here, count)
        size = _column('sizes', sizes, count)
        end = max(map(add, inside, size), default=0)
        if end > local.bytes:
            raise ValueError(f'a request ends at byte {end} of {local.bytes} of local memory')
        words = array('Q', bytes(8 * _WORDS * count))
        words[0::_WORDS] = array('Q', (op | priority << 32,)) * count
        words[1::_WORDS] = array('Q', (segment | timeout_ms << 32,)) * count
        words[2::_WORDS] = array('Q', [local.address + offset for offset in inside])
        words[3::_WORDS] = _column('offsets at the peer', there, count)
        words[4::_WORDS] = size
        self.words += words
        self.keep.append(local)
        self.segments.add(segment)
        return count

    def clear(self) -> None:
        """They were submitted; what they touch is still needed."""
        self.words = array('Q')
        self.segments.clear()
