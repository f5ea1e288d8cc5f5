"""Calls that return at once: `Store.queue`.

    with s.queue() as q:
        saved = q.put_blocks(layout, 'model@', hashes, blocks)
        ...
        for done in q.take():               # never waits; q.fileno() is readable while it has some
            done.failed, done.bytes, done.result()

What a call uses is referenced until it is taken. Any thread may begin calls and take them.
"""
from __future__ import annotations

import contextlib
import itertools
import time
from ctypes import byref, c_void_p
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence

from ._abi import lib, mc_done
from ._calls import Call, ExistsKeys, GetKeys, PutKeys
from ._handle import Handle, close_with
from ._limits import Seconds, limited
from ._options import milliseconds
from ._pack import Key
from .blocks import HASH_BYTES, GetBlocks, Hashes, KvLayout, PutBlocks
from .errors import CODES, Code, NotFound, Timeout, error
from .options import PutOptions

if TYPE_CHECKING:
    from .store import Store

_TAKE = 256  # at a time


class Flight:
    """A call on a queue. When it is taken, `code` is the whole call's, `failed` counts items that
    did not succeed, and `result()` tells of each as the method of the same name of `Store` does."""

    __slots__ = ('tag', 'call', 'code', 'failed', 'bytes', 'context', '__weakref__')

    def __init__(self, tag: int, call: Call, context: Any) -> None:
        self.tag, self.call, self.context = tag, call, context
        self.code: Optional[Code] = None
        self.failed = 0
        self.bytes = 0

    @property
    def done(self) -> bool:
        """Whether it was taken."""
        return self.code is not None

    def result(self) -> Any:
        """Of each item. Raises when the call as a whole was not carried out."""
        if self.code is None:
            raise ValueError('this call is not taken from its queue yet')
        if self.code is not Code.OK:
            raise error(self.code, 'a call on a queue was not carried out')
        return self.call.result()


class Queue:
    """Calls on one store. `threads` carry them out; at most `depth` may be not taken yet."""

    def __init__(self, store: 'Store', threads: int = 0, depth: int = 0) -> None:
        self.store = store
        out = c_void_p()
        with store._handle as pointer:
            lib.mc_queue_open(lib.mc_store_engine(pointer), threads, depth, byref(out))
        assert out.value is not None
        self._tags = itertools.count(1)
        self._flying: dict[int, Flight] = {}
        self._handle = Handle('this queue', out.value, self._closing(self._flying), store._handle,
                              first=True)
        self._handle.settle = self._settling(self._handle.pointer, self._flying)
        close_with(self, self._handle)

    @staticmethod
    def _settling(pointer: int, flying: dict[int, Flight]) -> Any:
        def settle(seconds: float) -> bool:
            """Cancels what flies and waits for it; a get that waits may take longer."""
            deadline = time.monotonic() + seconds
            for tag in list(flying):
                with contextlib.suppress(NotFound):
                    lib.mc_queue_cancel(pointer, tag)
            while flying and time.monotonic() < deadline:
                with contextlib.suppress(Timeout):
                    lib.mc_queue_wait(pointer, milliseconds(deadline - time.monotonic()))
                _take(pointer, flying)
            return not flying
        return settle

    @staticmethod
    def _closing(flying: dict[int, Flight]) -> Any:
        def free(pointer: int) -> None:
            lib.mc_queue_close(pointer)
            for tag in list(flying):
                _land(flying.pop(tag, None), Code.UNAVAILABLE, 0, 0)
        return free

    def begin(self, call: Call, context: Any = None, timeout: Seconds = None) -> Flight:
        """Any call; `context` is the caller's, to know it by. `Busy` when the queue is full.
        `timeout`, in seconds, counts from here on; None: the store's, from when it runs."""
        flight = Flight(next(self._tags), call, context)
        if call.uses is not None:
            call.uses.__enter__()
        self._flying[flight.tag] = flight
        try:
            with limited(timeout), self._handle as queue, self.store._handle as store:
                call.begin(store, queue, flight.tag)
        except BaseException:
            if self._flying.pop(flight.tag, None) is not None and call.uses is not None:
                call.uses.__exit__()
            raise
        return flight

    def put_many(self, items: Mapping[Key, Any], options: Optional[PutOptions] = None,
                 context: Any = None, timeout: Seconds = None) -> Flight:
        """As `Store.put_many`."""
        return self.begin(PutKeys(list(items), items.values(), options), context, timeout)

    def get_many_into(self, items: Mapping[Key, Any], wait: float = 0.0,
                      context: Any = None, timeout: Seconds = None) -> Flight:
        """As `Store.get_many_into`."""
        return self.begin(GetKeys(list(items), items.values(), wait), context, timeout)

    def exists_many(self, keys: Sequence[Key], context: Any = None,
                    timeout: Seconds = None) -> Flight:
        """As `Store.exists_many`."""
        return self.begin(ExistsKeys(keys), context, timeout)

    def put_blocks(self, layout: KvLayout, prefix: Key, hashes: Hashes, blocks: Any, *,
                   regions: tuple[int, int] = (0, 0), options: Optional[PutOptions] = None,
                   hash_bytes: int = HASH_BYTES, context: Any = None,
                   timeout: Seconds = None) -> Flight:
        """As `Store.put_blocks`."""
        call = PutBlocks(layout, prefix, hashes, blocks, regions, hash_bytes)
        call.options = options
        return self.begin(call, context, timeout)

    def get_blocks(self, layout: KvLayout, prefix: Key, hashes: Hashes, blocks: Any, *,
                   regions: tuple[int, int] = (0, 0), wait: float = 0.0,
                   hash_bytes: int = HASH_BYTES, context: Any = None,
                   timeout: Seconds = None) -> Flight:
        """As `Store.get_blocks`."""
        call = GetBlocks(layout, prefix, hashes, blocks, regions, hash_bytes)
        call.wait = wait
        return self.begin(call, context, timeout)

    def take(self) -> list[Flight]:
        """What is done, in the order in which it was. Never waits."""
        with self._handle as queue:
            return _take(queue, self._flying)

    def wait(self, timeout: float) -> bool:
        """Until something is done and not taken. False when nothing was."""
        try:
            with self._handle as queue:
                lib.mc_queue_wait(queue, milliseconds(timeout))
            return True
        except Timeout:
            return False

    def cancel(self, flight: Flight) -> None:
        """Ends it early if it has not begun. No byte of it is touched any more once it is taken."""
        try:
            with self._handle as queue:
                lib.mc_queue_cancel(queue, flight.tag)
        except NotFound:
            pass  # done already

    def fileno(self) -> int:
        """A descriptor that is readable while something is done and not taken. Only poll it."""
        with self._handle as queue:
            fd: int = lib.mc_queue_fd(queue)
        return fd

    def flights(self) -> list[Flight]:
        """Calls that are not taken yet."""
        return list(self._flying.values())

    def __len__(self) -> int:
        """How many calls are not taken yet."""
        return len(self._flying)

    def close(self) -> None:
        """Cancels what has not begun, waits for the rest, and forgets what is not taken."""
        self._handle.close()

    def __enter__(self) -> 'Queue':
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _take(queue: int, flying: dict[int, Flight]) -> list[Flight]:
    taken: list[Flight] = []
    room = (mc_done * _TAKE)()
    while True:
        count = lib.mc_queue_take(queue, room, _TAKE)
        for done in room[:count]:
            flight = flying.pop(done.tag, None)
            if flight is not None:
                _land(flight, CODES[done.code], done.failed, done.bytes)
                taken.append(flight)
        if count < _TAKE:
            return taken


def _land(flight: Optional[Flight], code: Code, failed: int, moved: int) -> None:
    if flight is None:
        return
    flight.code, flight.failed, flight.bytes = code, failed, moved
    if flight.call.uses is not None:
        flight.call.uses.__exit__()
    flight.call.end()  # behind that: a layout that nobody else has is closed here
