"""Keys, buffers and results as flat arrays: what the library takes, made without an object an item.

The structures of the C interface are arrays of 64-bit words, so `array('Q')` holds them. A `Packed`
keeps everything that its words point to.
"""
from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Any, Iterable, NamedTuple, Sequence, Union

from .buffers import Span, span

Key = Union[str, bytes]
ITEM_WORDS = 6  # key, its length, buffers, their count, two reserved


class Packed(NamedTuple):
    """Structures in a row: where they begin, how many, and what they point to."""

    address: int
    count: int
    keep: Any


def encode(key: Key) -> bytes:
    """A key as the store has it: text is UTF-8."""
    return key.encode() if isinstance(key, str) else bytes(key)


def flat(keys: Sequence[Key]) -> tuple[bytes, 'array[int]']:
    """All keys in a row, and where each ends."""
    try:
        text = ''.join(keys)  # type: ignore[arg-type]
    except TypeError:
        text = '\xff'
    if text.isascii():
        return text.encode(), array('I', accumulate(map(len, keys)))
    coded = [encode(key) for key in keys]
    return b''.join(coded), array('I', accumulate(map(len, coded)))


def pack_keys(keys: Sequence[Key]) -> Packed:
    """`mc_key` for each."""
    joined, ends = flat(keys)
    base = span(joined).address
    words = array('Q', bytes(16 * len(ends)))
    starts = array('I', [0]) + ends[:-1] if ends else ends
    words[0::2] = array('Q', [base + start for start in starts])
    words[1::2] = array('Q', [end - start for start, end in zip(starts, ends)])
    return Packed(words.buffer_info()[0], len(ends), (words, joined))


def pack_items(keys: Sequence[Key], values: Iterable[Sequence[Span]]) -> Packed:
    """`mc_item` for each key and the memory of its value."""
    named = pack_keys(keys)
    parts = list(values)
    buffers = array('Q')
    for value in parts:
        for part in value:
            buffers.append(part.address)
            buffers.append(part.bytes)
    words = array('Q', bytes(8 * ITEM_WORDS * named.count))
    place = buffers.buffer_info()[0]
    ends = list(accumulate(map(len, parts)))
    key_words = named.keep[0]
    words[0::ITEM_WORDS] = key_words[0::2]
    words[1::ITEM_WORDS] = key_words[1::2]
    words[2::ITEM_WORDS] = array('Q', [place + 16 * (end - len(v)) for end, v in zip(ends, parts)])
    words[3::ITEM_WORDS] = array('Q', map(len, parts))
    return Packed(words.buffer_info()[0], named.count, (words, buffers, named, parts))
