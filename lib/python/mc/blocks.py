"""Blocks of a KV cache in one call: keys and addresses are made by the library.

    layout = s.layout([mc.Region(k_cache, 4096), mc.Region(v_cache, 4096)], blocks=1000)
    s.put_blocks(layout, 'model@', hashes, [17, 4, 9])
    n = s.match_blocks(['model@'], hashes)
    s.get_blocks(layout, 'model@', hashes, [3, 5, 6]).failed()      # []: all are there

A value is one block's bytes in all regions, one after another. Its key is the prefix and the
block's hash in lower-case hex. However many blocks move, Python's part is a handful of calls.
"""
from __future__ import annotations

import ctypes
from array import array
from ctypes import byref, c_void_p
from typing import Any, NamedTuple, Optional, Sequence, Union

from ._abi import lib, mc_kv_blocks, mc_kv_region
from ._calls import Call
from ._handle import Handle, Pins, close_with
from ._options import milliseconds
from ._pack import Key, Results, encode
from .buffers import OwnMemory, Span, span
from .errors import Busy
from .options import PutOptions, native

HASH_BYTES = 32
Hashes = Union[bytes, bytearray, memoryview, Sequence[bytes]]
CLOSE_SECONDS = 60.0  # how long a layout waits for calls that use it


class Region(NamedTuple):
    """Where a part of every block lies: block b begins `offset + b * stride` bytes behind the start
    of `memory`, an object with a buffer or an address. It has `rows` pieces of `bytes`, each
    `row_stride` behind the one before."""

    memory: Any
    bytes: int
    stride: int = 0  # 0: rows * bytes, one block right behind the other
    offset: int = 0
    rows: int = 1
    row_stride: int = 0


class KvLayout:
    """Regions whose memory is registered, made by `Store.layout`. Close it before its store."""

    def __init__(self, store: Handle, regions: Sequence[Region], blocks: int) -> None:
        self.blocks = blocks
        self._memory = [r.memory for r in regions if isinstance(r.memory, OwnMemory)]
        self.bytes = sum(r.rows * r.bytes for r in regions)  # of a value
        keep = [_place(r, blocks) for r in regions]
        natives = (mc_kv_region * len(regions))(*(_native(r, at) for r, at in zip(regions, keep)))
        out = c_void_p()
        held = Pins()
        try:
            held.add(*(memory.handle for memory in self._memory))
            with store as pointer:
                lib.mc_kv_layout_new(pointer, natives, len(regions), blocks, byref(out))
        except BaseException:
            held.release()
            raise
        assert out.value is not None
        self._handle = Handle('this layout', out.value, lib.mc_kv_layout_free, store, keep)
        self._handle.after = held.release
        close_with(self, self._handle)

    def check(self) -> None:
        """Raises `BufferError` when memory of it was closed."""
        for memory in self._memory:
            memory.span()

    def close(self) -> None:
        """Withdraws the memory. `Busy` when calls still use it after a minute."""
        if not self._handle.close(CLOSE_SECONDS):
            raise Busy('calls on this layout are not taken from their queue yet')

    def __enter__(self) -> 'KvLayout':
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _stride(region: Region) -> int:
    return region.stride or region.rows * region.bytes


def _place(region: Region, blocks: int) -> Span:
    if isinstance(region.memory, int):
        return Span(region.memory + region.offset, 0, None)
    found = span(region.memory, writable=True)
    rows = (region.rows - 1) * region.row_stride + region.bytes
    end = region.offset + max(blocks - 1, 0) * _stride(region) + rows
    if end > found.bytes:
        raise ValueError(f'{blocks} blocks end at byte {end} of memory that has {found.bytes}')
    return Span(found.address + region.offset, found.bytes, found.keep)


def _native(region: Region, at: Span) -> mc_kv_region:
    return mc_kv_region(ctypes.sizeof(mc_kv_region), region.rows, at.address, _stride(region),
                        region.bytes, region.row_stride)


def joined(hashes: Hashes) -> Span:
    """Hashes one after another, from a list or as they are."""
    return span(b''.join(hashes) if isinstance(hashes, (list, tuple)) else hashes)


def hash_count(hashed: Span, hash_bytes: int) -> int:
    """How many hashes there are."""
    if hash_bytes < 1 or hashed.bytes % hash_bytes:
        raise ValueError(f'hashes of {hashed.bytes} bytes: want {max(hash_bytes, 1)} for each')
    return hashed.bytes // hash_bytes


def numbers(blocks: Any) -> Span:
    """Block numbers as 32-bit words: an array of them as it is, others copied."""
    if isinstance(blocks, array) and blocks.typecode == 'I':
        return span(blocks)
    if getattr(blocks, 'dtype', None) == 'uint32':
        return span(blocks)
    return span(array('I', blocks))


class BlocksCall(Call):
    """A put or a get of blocks."""

    def __init__(self, layout: KvLayout, prefix: Key, hashes: Hashes, blocks: Any,
                 regions: tuple[int, int], hash_bytes: int) -> None:
        layout.check()
        self.uses, self.memory = (layout._handle,), layout
        hashed, numbered, name = joined(hashes), numbers(blocks), encode(prefix)
        count = numbered.bytes // 4
        if hashed.bytes != count * hash_bytes:
            raise ValueError(f'{count} blocks and {hashed.bytes} bytes of hashes: want '
                             f'{hash_bytes} for each')
        self._keep = (hashed, numbered)
        self._native = mc_kv_blocks(
            ctypes.sizeof(mc_kv_blocks), hash_bytes, name, len(name), hashed.address,
            numbered.address, None, count, regions[0], regions[1])
        self.results = Results(count)

    def result(self) -> Results:
        """A code and bytes for each block."""
        return self.results


class PutBlocks(BlocksCall):
    """Stores blocks."""

    options: Optional[PutOptions] = None

    def begin(self, store: int, queue: Optional[int], tag: int) -> None:
        """Gives it to the library."""
        self.give('mc_store_put_blocks', store, self.uses[0].pointer, self._native, queue, tag,
                  native(self.options), self.results.address)


class GetBlocks(BlocksCall):
    """Fills blocks."""

    def begin(self, store: int, queue: Optional[int], tag: int) -> None:
        """Gives it to the library."""
        self.give('mc_store_get_blocks', store, self.uses[0].pointer, self._native, queue, tag,
                  milliseconds(self.wait), self.results.address)
