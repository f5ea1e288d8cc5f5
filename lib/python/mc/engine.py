"""The transfer engine: memory that is offered, peers, and bytes that move between them.

    with mc.Engine('node-a') as e, e.allocate(1 << 20) as m:
        peer = e.open('10.0.0.2:5600', timeout=3.0)
        peer.read(m, offset=0)
        with e.batch() as b:
            b.write(m[:4096], peer, offset=0)
            b.notify('done', b'request 7')           # for the peer's notices(), behind the bytes
            b.wait(timeout=1.0)
        with e.prepare() as layer:
            layer.read_many(m, peer, here=[0, 4096], there=[8192, 0], sizes=4096)
            layer.run()                              # as often as wanted

Any object may be used from any thread. Offsets count from the first byte of the peer's segment.
"""
from __future__ import annotations

import contextlib
from collections import deque
from ctypes import (byref, c_char, c_uint32, c_uint64, c_void_p, create_string_buffer, sizeof,
                    string_at)
from itertools import repeat, starmap
from typing import Any, NamedTuple, Optional

from ._abi import CONSTANTS, lib, mc_device, mc_each_notice
from ._handle import Handle, Pins, close_with, using
from ._options import c_text, given, milliseconds
from ._requests import READ, WRITE, words_of
from .batch import SECONDS, Batch, Prepared, Priority, State, Status
from .buffers import OwnMemory, Span, device_span, owned, span
from .errors import Invalid

__all__ = ['Batch', 'Device', 'Engine', 'Memory', 'Notice', 'Peer', 'Prepared', 'Priority',
           'Slice', 'State', 'Status', 'allocate']
_WRITABLE = CONSTANTS['MC_WRITABLE']


class Notice(NamedTuple):
    """A message of a peer: the name of its engine, and what it said."""

    sender: str
    name: str
    data: bytes


class Device(NamedTuple):
    """A GPU that an engine can reach: 'cuda:0', its PCI address or nothing, its memory."""

    location: str
    pci: str
    nbytes: int


class Slice(OwnMemory):
    """A part of a `Memory`: bytes `offset` to `offset + nbytes` of it."""

    __slots__ = ('memory', 'offset', 'nbytes', '__weakref__')

    def __init__(self, memory: 'Memory', offset: int, nbytes: int) -> None:
        self.memory, self.offset, self.nbytes = memory, offset, nbytes

    def span(self) -> Span:
        """Where it lies."""
        _open(self.memory._handle)
        return Span(self.memory.address + self.offset, self.nbytes, self)

    @property
    def handle(self) -> Handle:
        """Of all of it."""
        return self.memory._handle

    def of_host(self) -> None:
        """Raises `BufferError` where it is a device's or a file's."""
        self.memory.of_host()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        self.of_host()
        return {'version': 3, 'shape': (self.nbytes,), 'typestr': '|u1',
                'data': (self.memory.address + self.offset, False)}

    @property
    def view(self) -> memoryview:
        """The bytes, to be read and written here; not to be used after the memory is closed."""
        self.of_host()
        block = (c_char * self.nbytes).from_address(self.memory.address + self.offset)
        setattr(block, 'memory', self.memory)  # a view keeps its block, and so the memory
        return memoryview(block).cast('B')

    def __len__(self) -> int:
        return self.nbytes


class Memory(OwnMemory):
    """Memory that peers reach: allocated by the engine, or a caller's object that is registered."""

    def __init__(self, parent: Handle, pointer: int, keep: Any = None,
                 location: str = 'cpu') -> None:
        self.location = location  # 'cpu', 'cuda:1' or 'file'
        self.address: int = lib.mc_memory_data(pointer) or 0
        self.nbytes: int = lib.mc_memory_bytes(pointer)
        self.offset: int = lib.mc_memory_offset(pointer)
        self._handle = Handle('this memory', pointer, lib.mc_memory_free, parent, keep,
                              postpones=True)
        close_with(self, self._handle)
        kept = keep if type(keep) is tuple else (keep,)
        beneath = owned(part for part in kept if isinstance(part, Span))
        if beneath:  # it is registered once more
            held = Pins()
            self._handle.after = held.release
            held.add(*beneath)

    @property
    def handle(self) -> Handle:
        """Its own."""
        return self._handle

    def span(self) -> Span:
        """Where it lies."""
        _open(self._handle)
        return Span(self.address, self.nbytes, self)

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
        _open(self._handle)
        return Slice(self, begin, max(end - begin, 0))

    def of_host(self) -> None:
        """Raises `BufferError` where it is a device's or a file's."""
        if not self.location.startswith('cpu'):
            raise BufferError(f'this is memory of {self.location}, which the host cannot read: '
                              'read it by a transfer')

    def close(self) -> None:
        """Withdraws it. Calls of other threads and requests of peers that still touch it end first.
        While a batch, a layout or a call on a queue uses it, it stays where it is until they are
        closed or taken; whatever begins after this is refused."""
        self._handle.close()

    def __enter__(self) -> 'Memory':
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open(handle: Handle) -> None:
    """`BufferError` when it is closed, and `Unsupported` after fork."""
    if handle.closed:
        with contextlib.suppress(Invalid):
            handle.check()
        raise BufferError('this memory is closed')


def allocate(handle: Handle, size: int, writable: bool, location: str = 'cpu') -> Memory:
    """Memory of an engine's own."""
    if size < 0:
        raise ValueError(f'{size} bytes: want 1 or more')
    out = c_void_p()
    flags = _WRITABLE if writable else 0
    with handle as engine:
        if location == 'cpu':
            lib.mc_memory_allocate(engine, size, flags, byref(out))
        else:
            lib.mc_memory_allocate_at(engine, size, c_text(location), flags, byref(out))
    assert out.value is not None
    return Memory(handle, out.value, location=location)


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
        self._transfer(READ, span(local, writable=True, anywhere=True), offset, timeout)

    def write(self, local: Any, offset: int = 0, timeout: Optional[float] = None) -> None:
        """Writes `local` to the peer at `offset`, and waits until it is there."""
        self._transfer(WRITE, span(local, anywhere=True), offset, timeout)

    def _transfer(self, op: int, local: Span, offset: int, timeout: Optional[float]) -> None:
        words = words_of(op, local, self.segment, offset)
        with self.engine._handle as engine:
            using(owned([local]), lib.mc_transfer, engine, words.buffer_info()[0],
                  milliseconds(SECONDS if timeout is None else timeout))

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
            lib.mc_notify(engine, self.segment, c_text(name), data, len(data),
                          milliseconds(timeout))

    def close(self) -> None:
        """Requests in flight fail as `Unavailable`."""
        if not self.engine._handle.closed:
            with self.engine._handle as engine:
                lib.mc_segment_close(engine, self.segment)


def _notice(native: Any) -> Notice:
    return Notice(_text(getattr(native, 'from')), _text(native.name),
                  string_at(native.data, native.bytes))


def _text(value: bytes) -> str:
    return value.decode(errors='replace')


class Engine:
    """One process's end of transfers. `options` are those of `mc-xfer serve --help`."""

    def __init__(self, name: str, *, listen: Optional[str] = None, **options: Any) -> None:
        out = c_void_p()
        with given({'listen': listen, **options}) as chosen:
            lib.mc_engine_open(c_text(name), chosen, byref(out))
        assert out.value is not None
        self._begin(Handle(f'engine {name}', out.value, lib.mc_engine_close))
        close_with(self, self._handle)

    def _begin(self, handle: Handle) -> None:
        self._handle = handle
        self._taken: deque[Notice] = deque()  # kept where a signal's handler raised
        with handle as engine:
            self.address: str = lib.mc_engine_address(engine).decode()

    @classmethod
    def _of_store(cls, handle: Handle, owner: Any) -> 'Engine':
        """The engine beneath a store, which closes it."""
        engine = cls.__new__(cls)
        engine._owner = owner  # type: ignore[attr-defined]
        engine._begin(handle)
        return engine

    def allocate(self, size: int, writable: bool = True, location: str = 'cpu') -> Memory:
        """Memory of the engine, which peers read, and write if `writable`: of the host, shared and
        zeroed, or of a device ('cuda:0')."""
        return allocate(self._handle, size, writable, location)

    def register(self, thing: Any, writable: bool = True, location: Optional[str] = None) -> Memory:
        """Offers the memory of an object, which is referenced until the `Memory` is closed. Memory
        of a GPU is used as it lies there: wait for its own work before a transfer begins."""
        found = device_span(thing, writable)
        if found is not None:
            location = location or self.location_of(found.address)
        if found is None or (location or 'cpu').startswith('cpu'):
            found = span(thing, writable)  # refuses what the host cannot reach
        out = c_void_p()
        with self._handle as engine:
            lib.mc_memory_register(engine, found.address, found.bytes,
                                   c_text(location) if location else None,
                                   _WRITABLE if writable else 0, byref(out))
        assert out.value is not None
        return Memory(self._handle, out.value, found, location or 'cpu')

    def register_file(self, path: str, size: int = 0, writable: bool = False) -> Memory:
        """Offers the first `size` bytes of a file, 0 for all of it; a `writable` one is made, or
        made longer. Its bytes are read and written by transfers only."""
        out = c_void_p()
        with self._handle as engine:
            lib.mc_memory_register_file(engine, c_text(path), size,
                                        _WRITABLE if writable else 0, byref(out))
        assert out.value is not None
        return Memory(self._handle, out.value, location='file')

    def devices(self) -> list[Device]:
        """The GPUs whose memory it can register. Loads their driver, which children of this process
        cannot use then."""
        with self._handle as engine:
            room = max(lib.mc_devices(engine, None, 0), 1)
            found = (mc_device * room)()
            found[0].size = sizeof(mc_device)
            count = min(lib.mc_devices(engine, found, room), room)
            return [Device(_text(d.location), _text(d.pci), d.bytes) for d in found[:count]]

    def location_of(self, address: int) -> str:
        """Where memory lies: 'cpu', 'cuda:1'. Loads the driver of GPUs, as `devices`."""
        text = create_string_buffer(32)
        with self._handle as engine:
            lib.mc_memory_kind(engine, address, text)
        return _text(text.value)

    def open(self, address: str, timeout: float = 3.0) -> Peer:
        """The segment of the process whose engine has this address."""
        out = c_uint32()
        with self._handle as engine:
            lib.mc_segment_open(engine, c_text(address), milliseconds(timeout), byref(out))
        return Peer(self, address, out.value)

    def notices(self, most: int = 1024) -> list[Notice]:
        """Takes what peers have sent. Never waits; `notices_fileno` is readable while some wait."""
        found: list[Notice] = []
        errors: list[BaseException] = []

        def each(_: Any, notice: Any) -> int:
            one = None
            try:
                one = _notice(notice.contents)
                found.append(one)
            except BaseException as e:  # of a signal's handler
                errors.append(e)
                if not found or found[-1] is not one:
                    found.append(_notice(notice.contents))
            return len(errors)

        with self._handle as engine:
            left = most - len(self._taken)
            try:
                if left > 0:
                    lib.mc_notices_take(engine, left, mc_each_notice(each), None)
            finally:
                self._taken.extend(found)
        if errors:
            raise errors[0]
        out: list[Notice] = []
        try:
            out.extend(starmap(self._taken.popleft, repeat((), min(most, len(self._taken)))))
        except IndexError:  # another thread took some
            pass
        except BaseException:
            self._taken.extendleft(reversed(out))
            raise
        return out

    def notices_fileno(self) -> int:
        """A descriptor that is readable while notices wait. Only poll it."""
        with self._handle as engine:
            fd: int = lib.mc_notices_fd(engine)
        return fd

    def batch(self) -> Batch:
        """Requests that are begun now and waited for later."""
        return Batch(self)

    def prepare(self) -> Prepared:
        """Requests that are carried out again and again."""
        return Prepared(self)

    def close(self) -> None:
        """Its memory is withdrawn, and requests in flight are cancelled."""
        self._handle.close()

    def __enter__(self) -> 'Engine':
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
