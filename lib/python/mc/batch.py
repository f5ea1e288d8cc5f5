"""Requests that fly together: once, or prepared and again and again."""
from __future__ import annotations

import enum
import threading
from ctypes import byref, c_void_p
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ._abi import check, lib, mc_status, unchecked
from ._handle import Handle, Pins, close_with, using
from ._options import c_text, milliseconds
from ._requests import READ, WRITE, Numbers, Requests
from .buffers import OwnMemory, Span, owned, span
from .errors import CODES, Code, Invalid

if TYPE_CHECKING:
    from .engine import Engine, Peer

SECONDS = 30.0  # of a transfer without a timeout of its own


class Priority(enum.IntEnum):
    """Which requests go first where a link is contended."""

    MEDIUM = 0
    HIGH = 1
    LOW = 2


class State(enum.IntEnum):
    """How far one request of a batch is."""

    WAITING = 0
    PENDING = 1
    COMPLETED = 2
    FAILED = 3
    TIMED_OUT = 4
    CANCELLED = 5


class Status(NamedTuple):
    """Of one request of a batch."""

    state: State
    code: Code
    bytes: int


class _Collects:
    """Takes requests, one by one or many at a time."""

    def __init__(self, engine: 'Engine') -> None:
        self.engine = engine
        self._lock = threading.Lock()
        self._count = 0
        self._ready = Requests()  # not submitted yet

    def _check(self) -> None:
        """Raises when no more can be added."""
        raise NotImplementedError

    def _hold(self, local: Span) -> None:
        """Keeps memory of an engine where it is."""

    def read(self, local: Any, peer: 'Peer', offset: int = 0, *, timeout: Optional[float] = None,
             priority: Priority = Priority.MEDIUM) -> int:
        """Fills `local` from the peer's bytes at `offset`. Returns the request's index."""
        return self._add(READ, local, peer, offset, priority, timeout)

    def write(self, local: Any, peer: 'Peer', offset: int = 0, *, timeout: Optional[float] = None,
              priority: Priority = Priority.MEDIUM) -> int:
        """Writes `local` to the peer at `offset`. Returns the request's index."""
        return self._add(WRITE, local, peer, offset, priority, timeout)

    def _add(self, op: int, local: Any, peer: 'Peer', offset: int, priority: int,
             timeout: Optional[float]) -> int:
        found = span(local, op == READ, anywhere=True)
        limit = 0 if timeout is None else milliseconds(timeout)
        with self._lock:
            self._check()
            self._hold(found)
            self._ready.add(op, found, peer.segment, offset, priority, limit)
            self._count += 1
            return self._count - 1

    def read_many(self, local: Any, peer: 'Peer', here: Numbers, there: Numbers, sizes: Numbers, *,
                  timeout: Optional[float] = None, priority: Priority = Priority.MEDIUM) -> range:
        """Fills parts of `local`: one request for each offset `here` in it, from the peer's bytes
        at the offset `there`; `sizes` are numbers too, or one for all. Returns their indices."""
        return self._add_many(READ, local, peer, here, there, sizes, priority, timeout)

    def write_many(self, local: Any, peer: 'Peer', here: Numbers, there: Numbers, sizes: Numbers,
                   *, timeout: Optional[float] = None,
                   priority: Priority = Priority.MEDIUM) -> range:
        """Writes parts of `local` to the peer, as `read_many` reads."""
        return self._add_many(WRITE, local, peer, here, there, sizes, priority, timeout)

    def _add_many(self, op: int, local: Any, peer: 'Peer', here: Numbers, there: Numbers,
                  sizes: Numbers, priority: int, timeout: Optional[float]) -> range:
        found = span(local, op == READ, anywhere=True)
        limit = 0 if timeout is None else milliseconds(timeout)
        with self._lock:
            self._check()
            self._hold(found)
            first = self._count
            self._count += self._ready.add_many(op, found, peer.segment, here, there, sizes,
                                                priority, limit)
            return range(first, self._count)


class Batch(_Collects):
    """Requests that fly together, from the next `submit`, `notify` or `wait` on. What they touch is
    referenced until the batch is closed."""

    def __init__(self, engine: 'Engine') -> None:
        super().__init__(engine)
        with engine._handle as pointer:
            batch = lib.mc_batch_allocate(pointer)
        self._handle = Handle('this batch', batch, partial(lib.mc_batch_free, pointer),
                              engine._handle, keep=self._ready.keep, first=True)
        self._held = Pins()
        self._handle.after = self._held.release
        close_with(self, self._handle)

    def _check(self) -> None:
        self._handle.check()

    def _hold(self, local: Span) -> None:
        self._held.add(*owned([local]))

    def submit(self) -> None:
        """Begins the requests that have not begun: all of them, or none."""
        with self._handle as batch, self._lock:
            if self._ready:
                self._give('mc_batch_submit', self.engine._handle.pointer, batch,
                           self._ready.address, len(self._ready))

    def _give(self, name: str, *arguments: Any) -> None:
        """Requests to the library, once, also when a signal's handler raises behind it."""
        said: list[int] = []
        none = Requests()
        none.keep = self._ready.keep
        try:
            said.extend(starmap(getattr(unchecked, name), (arguments,)))
        finally:
            if said and not said[0]:
                self._ready = none
        check(said[0])

    def notify(self, name: str, data: bytes = b'') -> None:
        """Begins the requests that have not begun. Their peers get a notice when all bytes are
        there; each delivery is one more request of the batch."""
        with self._handle as batch, self._lock:
            if not self._ready:
                raise ValueError('no requests that this notice would come behind')
            notices = len(self._ready.segments)
            self._give('mc_batch_submit_notify', self.engine._handle.pointer, batch,
                       self._ready.address, len(self._ready), c_text(name), data, len(data))
            self._count += notices

    def __len__(self) -> int:
        return self._count

    def status(self, index: int) -> Status:
        """Of the request with this index."""
        out = mc_status()
        self.submit()
        with self._handle as batch:
            lib.mc_batch_status(self.engine._handle.pointer, batch, index, byref(out))
        return Status(State(out.state), CODES[out.code], out.bytes_done)

    def wait(self, timeout: float = SECONDS) -> None:
        """Until all are done. Raises the first failure, or `Timeout` while some still move."""
        self.submit()
        with self._handle as batch:
            lib.mc_batch_wait(self.engine._handle.pointer, batch, milliseconds(timeout))

    def cancel(self) -> None:
        """When it returns, no byte of local memory is read or written any more."""
        with self._handle as batch:
            lib.mc_batch_cancel(self.engine._handle.pointer, batch)

    def close(self) -> None:
        """Cancels what has not finished, and forgets all of it."""
        self._handle.close()

    def __enter__(self) -> 'Batch':
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Prepared(_Collects):
    """Requests that are checked and merged once, at the first `run` or `start`, and carried out as
    often as wanted. What they touch is referenced until it is closed. A timeout is given to each
    run, not to requests."""

    def __init__(self, engine: 'Engine') -> None:
        super().__init__(engine)
        self._handle: Optional[Handle] = None
        self._own: list[OwnMemory] = []
        self._closed = False

    def _check(self) -> None:
        if self._closed:
            raise Invalid('this is closed')
        if self._handle is not None:
            raise ValueError('it was run already: prepare others for more requests')

    def _made(self) -> Handle:
        with self._lock:
            if self._handle is None:
                self._check()
                out = c_void_p()
                with self.engine._handle as engine:
                    lib.mc_prepared_new(engine, self._ready.address, len(self._ready), byref(out))
                assert out.value is not None
                self._handle = Handle('this', out.value, lib.mc_prepared_free, self.engine._handle,
                                      keep=self._ready.keep, first=True)
                close_with(self, self._handle)
                own = [s.keep for s in self._ready.keep if isinstance(s.keep, OwnMemory)]
                self._own = list({memory.handle: memory for memory in own}.values())
                self._ready.clear()
        self._handle.check()
        for memory in self._own:
            memory.span()  # raises where it was closed meanwhile
        return self._handle

    def run(self, timeout: float = SECONDS) -> None:
        """Carries all of them out. Raises the first failure; past `timeout` it is `Timeout`, and
        no byte is read or written any more. `BufferError` when memory of them was closed."""
        with self._made() as prepared:
            using((memory.handle for memory in self._own), lib.mc_prepared_run, prepared,
                  milliseconds(timeout))

    def start(self, timeout: Optional[float] = None) -> Batch:
        """Begins them, and returns the batch that they fly in. Wait for it before the next."""
        with self._made() as prepared:
            batch = Batch(self.engine)
            limit = 0 if timeout is None else milliseconds(timeout)
            for memory in self._own:
                batch._held.add(memory.handle)
            with batch._handle as pointer:
                lib.mc_prepared_submit(prepared, pointer, limit, None, 0)
            batch._count = self._count
            batch._handle.keep.append(self._ready.keep)
        return batch

    def __len__(self) -> int:
        return self._count

    def close(self) -> None:
        """Waits for runs of other threads, and forgets all of it. Batches go on."""
        with self._lock:
            self._closed = True
        if self._handle is not None:
            self._handle.close()

    def __enter__(self) -> 'Prepared':
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
