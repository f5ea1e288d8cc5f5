"""The transfer engine: memory that is offered, peers, and bytes that move between them.

    with mc.Engine('node-a') as e, e.allocate(1 << 20) as m:
        peer = e.open('10.0.0.2:5600', timeout=3.0)
        peer.read(m, offset=0)
        with e.batch() as b:
            b.write(m[:4096], peer, offset=0)
            b.notify('done', b'request 7')           # for the peer's notices(), behind the bytes
            b.wait(timeout=1.0)

Any object may be used from any thread. Offsets count from the first byte of the peer's segment.
"""
from __future__ import annotations

import enum
import threading
from ctypes import byref, c_char, c_uint32, c_uint64, c_void_p, string_at
from typing import Any, NamedTuple, Optional, Union

from ._abi import CONSTANTS, lib, mc_each_notice, mc_request, mc_status
from ._handle import Handle, close_with
from ._options import given, milliseconds
from .buffers import Span, span
from .errors import CODES, Code

SECONDS = 30.0  # of a transfer without a timeout of its own
_WRITABLE = CONSTANTS['MC_WRITABLE']
_READ, _WRITE = CONSTANTS['MC_READ'], CONSTANTS['MC_WRITE']


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


class Notice(NamedTuple):
    """A message of a peer: the name of its engine, and what it said."""

    sender: str
    name: str
    data: bytes


class Slice:
    """A part of a `Memory`: bytes `offset` to `offset + nbytes` of it."""

    def __init__(self, memory: 'Memory', offset: int, nbytes: int) -> None:
        self.memory, self.offset, self.nbytes = memory, offset, nbytes

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {'version': 3, 'shape': (self.nbytes,), 'typestr': '|u1',
                'data': (self.memory.address + self.offset, False)}

    @property
    def view(self) -> memoryview:
        """The bytes, to be read and written here; not to be used after the memory is closed."""
        block = (c_char * self.nbytes).from_address(self.memory.address + self.offset)
        setattr(block, 'memory', self.memory)  # a view keeps its block, and so the memory
        return memoryview(block).cast('B')

    def __len__(self) -> int:
        return self.nbytes


class Memory:
    """Memory that peers reach: allocated by the engine, or a caller's object that is registered."""

    def __init__(self, parent: Handle, pointer: int, keep: Any = None) -> None:
        self.address: int = lib.mc_memory_data(pointer) or 0
        self.nbytes: int = lib.mc_memory_bytes(pointer)
        self.offset: int = lib.mc_memory_offset(pointer)
        self._handle = Handle('this memory', pointer, lib.mc_memory_free, parent, keep)
        close_with(self, self._handle)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self[:].__array_interface__

    @property
    def view(self) -> memoryview:
        """All of it, to be read and written here; not to be used after `close`."""
        return self[:].view

    def __len__(self) -> int:
        return self.nbytes

    def __getitem__(self, part: slice) -> Slice:
        begin, end, step = part.indices(self.nbytes)
        if step != 1:
            raise BufferError('memory is cut in steps of 1 only')
        if self._handle.closed:
            raise BufferError('this memory is closed')
        return Slice(self, begin, max(end - begin, 0))

    def close(self) -> None:
        """Withdraws it. Requests of peers that still touch it end first."""
        self._handle.close()

    def __enter__(self) -> 'Memory':
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def allocate(handle: Handle, size: int, writable: bool) -> Memory:
    """Memory of an engine's own."""
    out = c_void_p()
    with handle as engine:
        lib.mc_memory_allocate(engine, size, _WRITABLE if writable else 0, byref(out))
    assert out.value is not None
    return Memory(handle, out.value)


class Peer:
    """The segment of another process, as `Engine.open` found it."""

    def __init__(self, engine: 'Engine', address: str, segment: int) -> None:
        self.engine, self.address, self.segment = engine, address, segment

    @property
    def nbytes(self) -> int:
        """Where its last buffer ends."""
        out = c_uint64()
        with self.engine._handle as engine:
            lib.mc_segment_bytes(engine, self.segment, byref(out))
        return out.value

    def read(self, local: Any, offset: int = 0, timeout: Optional[float] = None) -> None:
        """Fills `local` from the peer's bytes at `offset`, and waits for it."""
        self._transfer(_READ, span(local, writable=True), offset, timeout)

    def write(self, local: Any, offset: int = 0, timeout: Optional[float] = None) -> None:
        """Writes `local` to the peer at `offset`, and waits until it is there."""
        self._transfer(_WRITE, span(local), offset, timeout)

    def _transfer(self, op: int, local: Span, offset: int, timeout: Optional[float]) -> None:
        request = _request(op, local, self.segment, offset)
        with self.engine._handle as engine:
            lib.mc_transfer(engine, request, milliseconds(SECONDS if timeout is None else timeout))

    def offset_of(self, address: int, size: int) -> int:
        """Where a range lies in the segment that the peer has at this address. `Unsupported` when
        the peer's option `addresses` is off."""
        out = c_uint64()
        with self.engine._handle as engine:
            lib.mc_segment_offset(engine, self.segment, address, size, byref(out))
        return out.value

    def notify(self, name: str, data: bytes = b'', timeout: float = 3.0) -> None:
        """Sends a notice, which the peer's `notices` tells."""
        with self.engine._handle as engine:
            lib.mc_notify(engine, self.segment, name.encode(), data, len(data),
                          milliseconds(timeout))

    def close(self) -> None:
        """Requests in flight fail as `Unavailable`."""
        if not self.engine._handle.closed:
            with self.engine._handle as engine:
                lib.mc_segment_close(engine, self.segment)


def _request(op: int, local: Span, segment: int, offset: int, priority: int = 0,
             timeout: Optional[float] = None) -> mc_request:
    if offset < 0:
        raise ValueError(f'offset {offset} is negative')
    return mc_request(op=op, priority=priority, segment=segment, local=local.address, offset=offset,
                      bytes=local.bytes, timeout_ms=0 if timeout is None else milliseconds(timeout))


class Batch:
    """Requests that fly together, from the next `submit`, `notify` or `wait` on. What they touch is
    referenced until the batch is closed."""

    def __init__(self, engine: 'Engine') -> None:
        self.engine = engine
        with engine._handle as pointer:
            batch = lib.mc_batch_allocate(pointer)
        self._lock = threading.Lock()
        self._count = 0
        self._ready: list[mc_request] = []  # not submitted yet
        free = self._free_of(engine._handle)
        self._handle = Handle('this batch', batch, free, engine._handle, keep=[],
                              first=True)
        close_with(self, self._handle)

    @staticmethod
    def _free_of(engine: Handle) -> Any:
        return lambda batch: lib.mc_batch_free(engine.pointer, batch)

    def read(self, local: Any, peer: Peer, offset: int = 0, *, timeout: Optional[float] = None,
             priority: Priority = Priority.MEDIUM) -> int:
        """Fills `local` from the peer's bytes at `offset`. Returns the request's index."""
        return self._add(_request(_READ, self._held(local, True), peer.segment, offset, priority,
                                     timeout))

    def write(self, local: Any, peer: Peer, offset: int = 0, *, timeout: Optional[float] = None,
              priority: Priority = Priority.MEDIUM) -> int:
        """Writes `local` to the peer at `offset`. Returns the request's index."""
        return self._add(_request(_WRITE, self._held(local, False), peer.segment, offset, priority,
                                  timeout))

    def _held(self, local: Any, writable: bool) -> Span:
        found = span(local, writable)
        self._handle.keep.append(found)
        return found

    def _add(self, request: mc_request) -> int:
        with self._handle, self._lock:
            self._ready.append(request)
            self._count += 1
            return self._count - 1

    def submit(self) -> None:
        """Begins the requests that have not begun: all of them, or none."""
        with self._handle as batch, self.engine._handle as engine, self._lock:
            if self._ready:
                requests = (mc_request * len(self._ready))(*self._ready)
                lib.mc_batch_submit(engine, batch, requests, len(requests))
                self._ready.clear()

    def notify(self, name: str, data: bytes = b'') -> None:
        """Begins the requests that have not begun. Their peers get a notice when all bytes are
        there; each delivery is one more request of the batch."""
        with self._handle as batch, self.engine._handle as engine, self._lock:
            if not self._ready:
                raise ValueError('no requests that this notice would come behind')
            requests = (mc_request * len(self._ready))(*self._ready)
            lib.mc_batch_submit_notify(engine, batch, requests, len(requests), name.encode(), data,
                                       len(data))
            self._count += len({request.segment for request in self._ready})
            self._ready.clear()

    def __len__(self) -> int:
        return self._count

    def status(self, index: int) -> Status:
        """Of the request with this index."""
        out = mc_status()
        self.submit()
        with self._handle as batch, self.engine._handle as engine:
            lib.mc_batch_status(engine, batch, index, byref(out))
        return Status(State(out.state), CODES[out.code], out.bytes_done)

    def wait(self, timeout: float = SECONDS) -> None:
        """Until all are done. Raises the first failure, or `Timeout` while some still move."""
        self.submit()
        with self._handle as batch, self.engine._handle as engine:
            lib.mc_batch_wait(engine, batch, milliseconds(timeout))

    def cancel(self) -> None:
        """When it returns, no byte of local memory is read or written any more."""
        with self._handle as batch, self.engine._handle as engine:
            lib.mc_batch_cancel(engine, batch)

    def close(self) -> None:
        """Cancels what has not finished, and forgets all of it."""
        self._handle.close()

    def __enter__(self) -> 'Batch':
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _text(value: bytes) -> str:
    return value.decode(errors='replace')


class Engine:
    """One process's end of transfers. `options` are those of `mc-xfer serve --help`."""

    def __init__(self, name: str, *, listen: Optional[str] = None, **options: Any) -> None:
        out = c_void_p()
        with given({'listen': listen, **options}) as chosen:
            lib.mc_engine_open(name.encode(), chosen, byref(out))
        assert out.value is not None
        self._begin(Handle(f'engine {name}', out.value, lib.mc_engine_close))
        close_with(self, self._handle)

    def _begin(self, handle: Handle) -> None:
        self._handle = handle
        with handle as engine:
            self.address: str = lib.mc_engine_address(engine).decode()

    @classmethod
    def _of_store(cls, handle: Handle, owner: Any) -> 'Engine':
        """The engine beneath a store, which closes it."""
        engine = cls.__new__(cls)
        engine._owner = owner  # type: ignore[attr-defined]
        engine._begin(handle)
        return engine

    def allocate(self, size: int, writable: bool = True) -> Memory:
        """Shared memory of the engine, zeroed, which peers read, and write if `writable`."""
        return allocate(self._handle, size, writable)

    def register(self, thing: Any, writable: bool = True, location: Optional[str] = None) -> Memory:
        """Offers the memory of an object, which is referenced until the `Memory` is closed."""
        found = span(thing, writable)
        out = c_void_p()
        with self._handle as engine:
            lib.mc_memory_register(engine, found.address, found.bytes,
                                   location.encode() if location else None,
                                   _WRITABLE if writable else 0, byref(out))
        assert out.value is not None
        return Memory(self._handle, out.value, found)

    def open(self, address: str, timeout: float = 3.0) -> Peer:
        """The segment of the process whose engine has this address."""
        out = c_uint32()
        with self._handle as engine:
            lib.mc_segment_open(engine, address.encode(), milliseconds(timeout), byref(out))
        return Peer(self, address, out.value)

    def notices(self, most: int = 1024) -> list[Notice]:
        """Takes what peers have sent. Never waits; `notices_fileno` is readable while some wait."""
        found: list[Notice] = []

        def each(_: Any, notice: Any) -> int:
            n = notice.contents
            found.append(Notice(_text(getattr(n, 'from')), _text(n.name),
                                string_at(n.data, n.bytes)))
            return 0

        with self._handle as engine:
            lib.mc_notices_take(engine, most, mc_each_notice(each), None)
        return found

    def notices_fileno(self) -> int:
        """A descriptor that is readable while notices wait. Only poll it."""
        with self._handle as engine:
            fd: int = lib.mc_notices_fd(engine)
        return fd

    def batch(self) -> Batch:
        """Requests that are begun now and waited for later."""
        return Batch(self)

    def close(self) -> None:
        """Its memory is withdrawn, and requests in flight are cancelled."""
        self._handle.close()

    def __enter__(self) -> 'Engine':
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
