"""The pool as the connector uses it: blocks of a registered KV cache, moved beside the engine.

A call is submitted with a tag, and take() tells what has ended. While the pool does not answer,
calls that have not begun are ended at once: nobody waits for one timeout after another.
Thread: submitting, taking and waiting by one thread; match() and close() by any.
"""
from __future__ import annotations

import contextlib
import time
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from ctypes import byref, c_size_t, c_void_p, sizeof
from typing import Any, NamedTuple

from mc import Code, McError, Store
from mc._abi import lib, mc_done, mc_kv_blocks, mc_kv_region
from mc._handle import Handle
from mc._pack import pack_keys
from mc.buffers import span
from mc.errors import CODES, Busy, NotFound, Put, Timeout, Unavailable
from mc.vllm.layout import Region
from mc.vllm.worker import Done

NOT_ADMITTED = 100  # beside the library's codes: the pool keeps no objects of this class
_THREADS = 4
_BREAK_AFTER, _PAUSE = 2, 1.0  # calls that failed as a whole; seconds without calls then
_AT_ONCE = 64  # ends that one look takes


class _Call(NamedTuple):
    count: int
    begun: float
    out: bool
    results: array[int]  # mc_put_result or mc_get_result: code, outcome or flags, bytes in two
    keep: Any


class Pool:
    """A client of the store, and the memory that its blocks lie in."""

    def __init__(self, name: str, master: str, options: Mapping[str, str], timeout: float) -> None:
        self._store = Store(master, name, timeout=timeout, **options)
        self._timeout = timeout
        self._layout: Handle | None = None
        self._queue: Handle | None = None
        self._offered: Any = None
        self._calls: dict[int, _Call] = {}
        self._refused: deque[Done] = deque()
        self._ends = (mc_done * _AT_ONCE)()
        self._failures = 0
        self._not_before = 0.0

    # ---- memory

    def register(self, regions: Sequence[Region], blocks: int) -> None:
        """The blocks of put() and get(). Undone by close()."""
        said = (mc_kv_region * len(regions))(*(
            mc_kv_region(size=sizeof(mc_kv_region), base=r.base, block_stride=r.stride,
                         bytes=r.bytes) for r in regions))
        layout, queue = c_void_p(), c_void_p()
        with self._store._handle as store:
            lib.mc_kv_layout_new(store, said, len(regions), blocks, byref(layout))
            assert layout.value is not None
            # Each is closed before its parent.
            self._layout = Handle('a KV cache', layout.value, lib.mc_kv_layout_free,
                                  self._store._handle)
            lib.mc_queue_open(lib.mc_store_engine(store), _THREADS, 0, byref(queue))
        assert queue.value is not None
        self._queue = Handle('a queue', queue.value, lib.mc_queue_close, self._layout)

    def offer(self, size: int) -> None:
        """Adds memory of this process to the pool, until close()."""
        self._offered = self._store.offer(size)

    # ---- calls that wait

    def match(self, prefixes: Sequence[bytes], hashes: bytes, count: int,
              within: float = 0.0) -> int | None:
        """Leading blocks that are there under every prefix; they are leased for reading.
        None: no answer `within` so many seconds, which may be tried again at once."""
        packed, found = pack_keys(prefixes), c_size_t()
        with self._store._handle as store:
            try:
                lib.mc_store_match_blocks_within(
                    store, packed.address, packed.count, hashes, len(hashes) // count, count,
                    max(1, int(within * 1000)) if within else 0, byref(found))
            except (Timeout, Unavailable):  # the latter: it has not answered yet
                if not within:
                    raise
                return None
        return found.value

    def tell(self, key: str, value: bytes) -> None:
        """Puts a value for people, if the pool takes it."""
        with contextlib.suppress(McError):
            self._store.put(key, value)

    def code_name(self, code: int) -> str:
        """As mc-store says it: 'no-space'."""
        if code == NOT_ADMITTED:
            return 'not-admitted'
        return CODES[code].name.lower().replace('_', '-')

    # ---- calls that do not

    def put(self, tag: int, prefix: bytes, hashes: bytes, blocks: list[int]) -> None:
        """Stores the blocks, each under prefix and hash."""
        self._submit(tag, prefix, hashes, blocks, True)

    def get(self, tag: int, prefix: bytes, hashes: bytes, blocks: list[int]) -> None:
        """Fills the blocks."""
        self._submit(tag, prefix, hashes, blocks, False)

    def take(self) -> list[Done]:
        """What has ended since the last look."""
        out = list(self._refused)
        self._refused.clear()
        if not self._calls:
            return out
        assert self._queue is not None
        with self._queue as queue:
            while count := lib.mc_queue_take(queue, self._ends, _AT_ONCE):
                out += [self._ended(self._ends[at]) for at in range(count)]
            # Nothing that waited so long is begun.
            old = time.monotonic() - self._timeout
            if self._calls and next(iter(self._calls.values())).begun < old:
                self._cancel(queue, [tag for tag, call in self._calls.items() if call.begun < old])
        return out

    def wait(self, seconds: float = 0.0) -> None:
        """Until something has ended, or so many seconds; each call ends within the timeout."""
        if self._refused or not self._calls:
            return
        assert self._queue is not None
        with self._queue as queue:
            with contextlib.suppress(Timeout):
                lib.mc_queue_wait(queue, max(1, int((seconds or self._timeout) * 1000)))

    def close(self, wait: float = 2.0) -> None:
        """Calls that have begun end within the timeout, which this waits for."""
        self._store._handle.close(wait)

    # ---- beneath

    def _submit(self, tag: int, prefix: bytes, hashes: bytes, blocks: list[int],
                out: bool) -> None:
        count, now = len(blocks), time.monotonic()
        if now < self._not_before:
            self._refused.append(Done(tag, [int(Code.UNAVAILABLE)] * count, 0.0))
            return
        numbers, names = array('I', blocks), span(hashes)
        results = array('I', bytes(16 * count))
        said = mc_kv_blocks(size=sizeof(mc_kv_blocks), hash_bytes=len(hashes) // count,
                            prefix=prefix, prefix_bytes=len(prefix), hashes=names.address,
                            blocks=numbers.buffer_info()[0], count=count)
        assert self._queue is not None and self._layout is not None
        address = results.buffer_info()[0]
        with self._store._handle as store, self._layout as layout, self._queue as queue:
            self._calls[tag] = _Call(count, now, out, results, (said, numbers, names))
            try:
                if out:
                    lib.mc_store_put_blocks(store, layout, byref(said), queue, tag, None, address)
                else:
                    lib.mc_store_get_blocks(store, layout, byref(said), queue, tag, 0, address)
            except McError as e:  # else, as when a signal's handler raises, the library may have it
                del self._calls[tag]
                if not isinstance(e, Busy):
                    raise
                self._refused.append(Done(tag, [int(Code.BUSY)] * count, 0.0))
                return

    def _ended(self, done: Any) -> Done:
        call = self._calls.pop(done.tag)
        codes = list(call.results[0::4]) if not done.code else [done.code] * call.count
        existed = 0
        if call.out and not done.code:
            for at, outcome in enumerate(call.results[1::4]):
                if codes[at]:
                    continue
                existed += outcome == Put.EXISTED
                if outcome == Put.NOT_ADMITTED:
                    codes[at] = NOT_ADMITTED
        self._note(codes)
        return Done(done.tag, codes, time.monotonic() - call.begun, existed)

    def _note(self, codes: list[int]) -> None:
        if not all(code in (Code.TIMEOUT, Code.UNAVAILABLE) for code in codes):
            self._failures = 0
            return
        self._failures += 1
        if self._failures >= _BREAK_AFTER:
            self._not_before = time.monotonic() + _PAUSE
            if self._queue is not None:
                with self._queue as queue:
                    self._cancel(queue, list(self._calls))

    def _cancel(self, queue: int, tags: list[int]) -> None:
        for tag in tags:
            with contextlib.suppress(NotFound):
                lib.mc_queue_cancel(queue, tag)
