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
import os
import select
import threading
import time
from ctypes import byref, c_void_p
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional, Sequence

from ._abi import lib, mc_done
from ._calls import Call, ExistsKeys, GetKeys, PutKeys
from ._handle import Handle, Pins, close_with
from ._limits import Seconds, limited
from ._options import milliseconds
from ._pack import Key
from .blocks import HASH_BYTES, GetBlocks, Hashes, KvLayout, PutBlocks
from .errors import CODES, Code, NotFound, Timeout, error
from .options import PutOptions

if TYPE_CHECKING:
    from .store import Store

_TAKE = 256  # at a time
_LONGEST_MS = 1 << 30


class Flight:
    """A call on a queue. When it is taken, `code` is the whole call's, `failed` counts items that
    did not succeed, and `result()` tells of each as the method of the same name of `Store` does."""

    __slots__ = ('tag', 'call', 'code', 'failed', 'bytes', 'context', '_held', '__weakref__')

    def __init__(self, tag: int, call: Call, context: Any, held: Pins) -> None:
        self.tag, self.call, self.context, self._held = tag, call, context, held
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

    def _land(self, code: Code, failed: int, moved: int) -> None:
        """The library uses nothing of it any more. Once more: nothing."""
        if self.code is None:
            self.failed, self.bytes = failed, moved
            self.code = code
        self._held.release()
        self.call.end()  # behind that: a layout that nobody else has is closed here


class _Flights:
    """Calls that the library has or had, until `take` has returned them."""

    def __init__(self) -> None:
        self.flying: dict[int, Flight] = {}
        self.closed: list[Callable[[list[Flight]], None]] = []
        self._landed: list[Flight] = []
        self._lock = threading.RLock()
        self._rooms: list[Any] = []  # what the library gave; it stays if a signal's handler raises

    def collect(self, queue: int) -> None:
        """What is done has landed."""
        fresh = full = False
        with self._lock:
            while full or not fresh:
                fresh = not self._rooms
                if fresh:
                    room = (mc_done * _TAKE)()
                    self._rooms.append(room)
                    lib.mc_queue_take(queue, room, _TAKE)
                full = self._land(self._rooms[0])
                del self._rooms[0]

    def _land(self, room: Any) -> bool:
        """Whether it was full."""
        for done in room:
            if not done.tag:
                return False
            flight = self.flying.get(done.tag)
            if flight is not None:
                flight._land(CODES[done.code], done.failed, done.bytes)
                self._landed.extend(map(self.flying.pop, (done.tag,)))  # in one step
        return True

    def give_up(self) -> None:
        """All, whose queue is closed."""
        left = list(self.flying.values())
        for tag, flight in list(self.flying.items()):
            flight._land(Code.UNAVAILABLE, 0, 0)
            self.flying.pop(tag, None)
        for tell in self.closed:
            tell(left)

    @property
    def some(self) -> bool:
        """Whether some are done and nobody has them."""
        return bool(self._landed or self._rooms)

    def landed(self) -> list[Flight]:
        """Those that have landed, once."""
        landed, self._landed = self._landed, []
        return landed


class Queue:
    """Calls on one store. `threads` carry them out; at most `depth` may be not taken yet."""

    def __init__(self, store: 'Store', threads: int = 0, depth: int = 0) -> None:
        self.store = store
        for name, value in (('threads', threads), ('depth', depth)):
            if value < 0:
                raise ValueError(f'{name} {value}: want 1 or more, or 0: as many as the library')
        out = c_void_p()
        with store._handle as pointer:
            lib.mc_queue_open(lib.mc_store_engine(pointer), threads, depth, byref(out))
        assert out.value is not None
        self._tags = itertools.count(1)
        self._flights = _Flights()
        self._handle = Handle('this queue', out.value, lib.mc_queue_close, store._handle,
                              first=True)
        self._handle.settle = partial(_settle, out.value, self._flights)
        self._handle.after = self._flights.give_up
        self._fd: int = lib.mc_queue_fd(out.value)
        self._handle.wake = partial(os.eventfd_write, self._fd, 1)
        close_with(self, self._handle)

    def _when_closed(self, tell: Callable[[list[Flight]], None]) -> None:
        """Called with what was not taken, on the thread that closes the queue or its store. It
        must not keep the queue."""
        self._flights.closed.append(tell)

    def begin(self, call: Call, context: Any = None, timeout: Seconds = None) -> Flight:
        """Any call; `context` is the caller's, to know it by. `Busy` when the queue is full.
        `timeout`, in seconds, counts from here on, also while it waits for a thread; None: the
        store's."""
        held, tag, flying = Pins(), next(self._tags), self._flights.flying
        if call.limits is None:
            call.limits = limited(timeout)
        try:
            held.add(*call.uses)
            flight = flying[tag] = Flight(tag, call, context, held)
            with call.limits, self._handle as queue, self.store._handle as store:
                call.begin(store, queue, tag)
        except BaseException:
            if not call.given:  # else it goes on, whatever a signal's handler raises
                flying.pop(tag, None)
                held.release()
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
            self._flights.collect(queue)
        return self._flights.landed()

    def wait(self, timeout: float) -> bool:
        """Until something is done and not taken. False when nothing was. `Invalid` when the queue
        is closed meanwhile."""
        deadline = time.monotonic() + timeout
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        while True:
            with self._handle:
                if self._flights.some:
                    return True
                left = max(deadline - time.monotonic(), 0)
                ready = poll.poll(min(milliseconds(left), _LONGEST_MS))  # a signal interrupts it
            self._handle.check()
            if ready or not left:
                return bool(ready)

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
        return list(self._flights.flying.values())

    def __len__(self) -> int:
        """How many calls are not taken yet."""
        return len(self._flights.flying)

    def close(self) -> None:
        """Cancels what has not begun, waits for the rest, and forgets what is not taken."""
        self._handle.close()

    def __enter__(self) -> 'Queue':
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _settle(queue: int, flights: _Flights, seconds: float) -> bool:
    """Cancels what flies and waits for it; a get that waits may take longer."""
    deadline = time.monotonic() + seconds
    for tag in list(flights.flying):
        with contextlib.suppress(NotFound):
            lib.mc_queue_cancel(queue, tag)
    while flights.flying and time.monotonic() < deadline:
        with contextlib.suppress(Timeout):
            lib.mc_queue_wait(queue, milliseconds(deadline - time.monotonic()))
        flights.collect(queue)
    return not flights.flying
