"""The pool as the connector uses it: blocks of a registered KV cache, moved beside the engine.

Each call is submitted with a tag, and take() tells what has ended. While the pool does not answer,
calls that wait are ended at once: nobody waits for one timeout after another.
Thread: submitting and taking by one thread; close() by any.
"""
from __future__ import annotations

import struct
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from ctypes import addressof, byref, c_size_t, c_void_p, create_string_buffer

from mc import Code, McError, Store
from mc._abi import lib
from mc._handle import Handle
from mc._pack import pack_keys
from mc.errors import CODES
from mc.vllm.layout import Region
from mc.vllm.worker import Done

_BREAK_AFTER, _PAUSE = 2, 1.0  # calls that failed as a whole; seconds without calls then
_ITEM = struct.Struct('=6Q')  # mc_item


class Pool:
    """A client of the store, and the memory that its blocks lie in."""

    def __init__(self, name: str, master: str, options: Mapping[str, str], timeout: float,
                 threads: int = 2) -> None:
        self._store = Store(master, name, timeout=timeout, **options)
        self._timeout = timeout
        self._memories: list[Handle] = []
        self._regions: list[Region] = []
        self._blocks = 0
        self._some = threading.Condition()
        self._jobs: deque[tuple[int, Callable[[], list[int]], int, float]] = deque()
        self._done: deque[Done] = deque()
        self._stop = False
        self._failures = 0
        self._not_before = 0.0
        self._threads = [threading.Thread(target=self._run, name=f'mc-pool-{at}', daemon=True)
                         for at in range(threads)]
        for thread in self._threads:
            thread.start()

    # ---- memory

    def register(self, regions: Sequence[Region], blocks: int) -> None:
        """Each distinct piece of memory once. Undone by close()."""
        self._regions, self._blocks = list(regions), blocks
        spans: list[list[int]] = []
        ends = [(r.base, r.base + (blocks - 1) * r.stride + r.bytes) for r in regions]
        for begin, end in sorted(ends):
            if spans and begin < spans[-1][1]:
                spans[-1][1] = max(spans[-1][1], end)
            else:
                spans.append([begin, end])
        for begin, end in spans:
            out = c_void_p()
            with self._store._handle as store:
                lib.mc_store_register_buffer(store, begin, end - begin, byref(out))
            assert out.value is not None
            handle = Handle('a KV cache', out.value, lib.mc_memory_free, self._store._handle)
            self._memories.append(handle)

    # ---- calls that wait

    def match(self, prefixes: Sequence[bytes], hashes: bytes, count: int) -> int:
        """Leading blocks that are there under every prefix; they are leased for reading."""
        size = len(hashes) // count
        for prefix in prefixes:
            if not count:
                break
            packed, found = pack_keys(_names(prefix, hashes, size, count)), c_size_t()
            with self._store._handle as store:
                lib.mc_store_match_prefix(store, packed.address, packed.count, byref(found))
            count = found.value
        return count

    def code_name(self, code: int) -> str:
        """As mc-store says it: 'no-space'."""
        return CODES[code].name.lower().replace('_', '-')

    # ---- calls that do not

    def put(self, tag: int, prefix: bytes, hashes: bytes, blocks: list[int]) -> None:
        """Stores the blocks, each under prefix and hash."""
        self._submit(tag, lambda: self._move(prefix, hashes, blocks, True), len(blocks))

    def get(self, tag: int, prefix: bytes, hashes: bytes, blocks: list[int]) -> None:
        """Fills the blocks."""
        self._submit(tag, lambda: self._move(prefix, hashes, blocks, False), len(blocks))

    def take(self) -> list[Done]:
        """What has ended since the last look."""
        with self._some:
            out = list(self._done)
            self._done.clear()
            return out

    def wait(self) -> None:
        """Until something has ended; each call ends within the timeout."""
        with self._some:
            self._some.wait_for(lambda: bool(self._done), 2 * self._timeout)

    def close(self, wait: float = 2.0) -> None:
        """Ends within `wait` seconds; a call that still runs then keeps what it uses."""
        end = time.monotonic() + wait
        with self._some:
            self._stop = True
            self._some.notify_all()
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        self._store._handle.close(max(0.0, end - time.monotonic()))

    # ---- beneath

    def _submit(self, tag: int, call: Callable[[], list[int]], count: int) -> None:
        with self._some:
            self._jobs.append((tag, call, count, time.monotonic()))
            self._some.notify()

    def _run(self) -> None:
        while True:
            with self._some:
                self._some.wait_for(lambda: bool(self._jobs) or self._stop)
                if self._stop:
                    return
                tag, call, count, begun = self._jobs.popleft()
                now = time.monotonic()
                broken = now < self._not_before or now - begun > self._timeout
            # No call that waited too long already, or that would wait for nothing.
            codes = [int(Code.UNAVAILABLE)] * count
            if not broken:
                try:
                    codes = call()
                except McError as failure:
                    codes = [int(failure.code)] * count
            with self._some:
                if not broken:
                    self._note(codes)
                self._done.append(Done(tag, codes, time.monotonic() - begun))
                self._some.notify_all()

    def _note(self, codes: list[int]) -> None:
        if codes and all(code in (Code.TIMEOUT, Code.UNAVAILABLE) for code in codes):
            self._failures += 1
            if self._failures >= _BREAK_AFTER:
                self._not_before = time.monotonic() + _PAUSE
        else:
            self._failures = 0

    def _move(self, prefix: bytes, hashes: bytes, blocks: list[int], out: bool) -> list[int]:
        count, regions = len(blocks), self._regions
        if max(blocks) >= self._blocks:
            raise ValueError(f'block {max(blocks)} of {self._blocks}')
        parts = array('Q', [word for block in blocks for r in regions
                            for word in (r.base + block * r.stride, r.bytes)])
        at, width = parts.buffer_info()[0], 16 * len(regions)
        names = [create_string_buffer(name, len(name))
                 for name in _names(prefix, hashes, len(hashes) // count, count)]
        items = bytearray(_ITEM.size * count)
        for n, name in enumerate(names):
            _ITEM.pack_into(items, n * _ITEM.size, addressof(name), len(name), at + n * width,
                            len(regions), 0, 0)
        packed = (c_void_p * 0).from_buffer(items)
        codes, moved = array('I', bytes(4 * count)), array('Q', bytes(8 * count))
        with self._store._handle as store:
            if out:
                lib.mc_store_put_batch(store, addressof(packed), count, codes.buffer_info()[0])
                return list(codes)
            lib.mc_store_get_batch(store, addressof(packed), count, 0, moved.buffer_info()[0],
                                   codes.buffer_info()[0])
        want = sum(r.bytes for r in regions)
        return [int(Code.CORRUPT) if not code and size != want else code  # not one of our values
                for code, size in zip(codes, moved, strict=True)]


def _names(prefix: bytes, hashes: bytes, size: int, count: int) -> list[bytes]:
    return [prefix + hashes[at * size:(at + 1) * size].hex().encode() for at in range(count)]
