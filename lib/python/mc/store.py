"""A client of the distributed store of KV caches.

    with mc.Store('127.0.0.1:5550') as s:
        s.put('a', b'bytes')
        s.get('a')                               # b'bytes'; KeyError when there is none
        s.put_many({'k1': x, 'k2': [k, v]})      # a result for each; a list is one value in parts

A value is written once and immutable until it is removed; to put a key that is there moves
nothing. Bytes move between the caller's memory and the nodes, without a copy in Python. Keys are
text (UTF-8) or bytes, 1 to 1024 long. Any store may be used from any thread; every call ends within
the option `timeout`.
"""
from __future__ import annotations

import itertools
import os
import threading
from array import array
from ctypes import byref, c_int, c_size_t, c_void_p
from typing import Any, Iterable, Mapping, Optional, Sequence

from ._abi import lib
from ._handle import Handle, close_with
from ._options import given, milliseconds
from ._pack import Key, Packed, encode, pack_items, pack_keys
from .buffers import fresh_bytes, span, spans
from .engine import Engine, Memory, allocate
from .errors import CODES, NoSpace, NotFound, Result

_numbers = itertools.count()


def own_name() -> str:
    """A name that no other client of this host has."""
    return f'py-{os.uname().nodename}-{os.getpid()}-{next(_numbers)}'


class Store:
    """The store behind a master. Options are those of `mc-store put --help` and `get --help`.

    The first call connects: a master that is not there fails that one.
    """

    def __init__(self, master: str = '127.0.0.1:5550', name: Optional[str] = None, *,
                 timeout: Optional[float] = None, replicas: Optional[int] = None,
                 listen: Optional[str] = None, **options: Any) -> None:
        self.name = name or own_name()
        self.master = master
        out = c_void_p()
        options.update(timeout=timeout, replicas=replicas, listen=listen)
        with given(options) as chosen:
            lib.mc_store_setup(self.name.encode(), master.encode(), chosen, byref(out))
        assert out.value is not None
        self._handle = Handle(f'store {self.name}', out.value, lib.mc_store_close)
        self._engine: Optional[Engine] = None
        self._lock = threading.Lock()
        close_with(self, self._handle)

    # ---- one value

    def put(self, key: Key, value: Any) -> None:
        """Stores the bytes of a buffer, or of a list of them. A key that is there is kept."""
        if isinstance(value, (list, tuple)):
            self.put_many({key: value})[key].check()
            return
        name, data = encode(key), span(value)
        with self._handle as store:
            lib.mc_store_put(store, name, len(name), data.address, data.bytes)

    def get(self, key: Key) -> bytes:
        """The value. Raises `NotFound`, which is a `KeyError`, when there is none."""
        name = encode(key)
        for last in (False, False, True):
            size = self.size(key)
            value, address = fresh_bytes(size)
            try:
                moved = self._get(name, address, size)
                break
            except NoSpace:  # a larger one took its place
                if last:
                    raise
        return value if moved == size else value[:moved]

    def get_into(self, key: Key, into: Any) -> int:
        """Fills a writable buffer, or a list of them, from the front. Returns the value's bytes."""
        if isinstance(into, (list, tuple)):
            return self.get_many_into({key: into})[key].check().bytes
        found = span(into, writable=True)
        return self._get(encode(key), found.address, found.bytes)

    def _get(self, name: bytes, address: int, capacity: int) -> int:
        moved = c_size_t()
        with self._handle as store:
            lib.mc_store_get(store, name, len(name), address, capacity, byref(moved))
        return moved.value

    def size(self, key: Key) -> int:
        """How many bytes the value has. It is leased, so that it stays for a read."""
        name, size = encode(key), c_size_t()
        with self._handle as store:
            lib.mc_store_size(store, name, len(name), byref(size))
        return size.value

    def exists(self, key: Key) -> bool:
        """Whether it is stored."""
        name, found = encode(key), c_int()
        with self._handle as store:
            lib.mc_store_exists(store, name, len(name), byref(found))
        return bool(found.value)

    __contains__ = exists

    def remove(self, key: Key, force: bool = False) -> None:
        """Raises `Busy` while it is leased to a reader, unless forced."""
        name = encode(key)
        with self._handle as store:
            lib.mc_store_remove(store, name, len(name), force)

    # ---- many values, in one round trip; items fail by themselves

    def put_many(self, items: Mapping[Key, Any]) -> dict[Key, Result]:
        """Stores each value, which is a buffer or a list of them. A result for each key."""
        keys = list(items)
        memory = [spans(value) for value in items.values()]
        packed = pack_items(keys, memory)
        codes = array('I', bytes(4 * packed.count))
        with self._handle as store:
            lib.mc_store_put_batch(store, packed.address, packed.count, codes.buffer_info()[0])
        sizes = (sum(part.bytes for part in value) for value in memory)
        return {key: Result(CODES[code], size) for key, code, size in zip(keys, codes, sizes)}

    def get_many(self, keys: Iterable[Key]) -> dict[Key, bytes]:
        """The values that are there, by key."""
        found: dict[Key, bytes] = {}
        for key in dict.fromkeys(keys):
            try:
                found[key] = self.get(key)
            except NotFound:
                continue
        return found

    def get_many_into(self, items: Mapping[Key, Any], wait: float = 0.0) -> dict[Key, Result]:
        """Fills a buffer, or a list of them, with each value; waits up to `wait` seconds for values
        that are not stored yet. A result for each key, with its bytes."""
        keys = list(items)
        memory = [spans(value, writable=True) for value in items.values()]
        packed = pack_items(keys, memory)
        codes, moved = array('I', bytes(4 * packed.count)), array('Q', bytes(8 * packed.count))
        with self._handle as store:
            lib.mc_store_get_batch(store, packed.address, packed.count, milliseconds(wait),
                                   moved.buffer_info()[0], codes.buffer_info()[0])
        return {key: Result(CODES[code], size) for key, code, size in zip(keys, codes, moved)}

    def exists_many(self, keys: Sequence[Key]) -> list[bool]:
        """For each key, whether it is stored."""
        packed = pack_keys(keys)
        found = bytearray(packed.count)
        with self._handle as store:
            lib.mc_store_exists_batch(store, packed.address, packed.count,
                                      span(found, writable=True).address)
        return list(map(bool, found))

    def match_prefix(self, keys: Sequence[Key]) -> int:
        """How many of the keys, from the first, are stored without a gap. They are leased."""
        packed, matched = pack_keys(keys), c_size_t()
        with self._handle as store:
            lib.mc_store_match_prefix(store, packed.address, packed.count, byref(matched))
        return matched.value

    def remove_many(self, keys: Sequence[Key], force: bool = False) -> dict[Key, Result]:
        """Removes each; `Code.BUSY` for one that is leased to a reader, unless forced."""
        packed: Packed = pack_keys(keys)
        codes = array('I', bytes(4 * packed.count))
        with self._handle as store:
            lib.mc_store_remove_batch(store, packed.address, packed.count, force,
                                      codes.buffer_info()[0])
        return {key: Result(CODES[code]) for key, code in zip(keys, codes)}

    # ---- memory

    def register(self, thing: Any) -> Memory:
        """Makes puts from this memory and gets into it faster: it is pinned once. The object is
        referenced until the `Memory` is closed."""
        found, out = span(thing), c_void_p()
        with self._handle as store:
            lib.mc_store_register_buffer(store, found.address, found.bytes, byref(out))
        assert out.value is not None
        return Memory(self._handle, out.value, (self, found))

    def allocate(self, size: int) -> Memory:
        """Memory of the engine beneath, zeroed: what values are put from and got into fastest."""
        return allocate(self.engine._handle, size, False)

    @property
    def engine(self) -> Engine:
        """The transfer engine beneath, which lives as long as the store."""
        with self._lock:
            if self._engine is None:
                with self._handle as store:
                    pointer = lib.mc_store_engine(store)
                below = Handle(f'the engine of {self.name}', pointer, lambda _: None, self._handle)
                self._engine = Engine._of_store(below, self)
            return self._engine

    def close(self) -> None:
        """Waits for the calls on it in other threads, and frees its memory first."""
        self._handle.close()

    def __enter__(self) -> 'Store':
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
