"""A client of the distributed store of KV caches.

    with mc.Store('127.0.0.1:5550') as s:
        s.put('a', b'bytes')                     # Put.STORED, EXISTED or NOT_ADMITTED
        s.get('a')                               # b'bytes'; KeyError when there is none
        s.put_many({'k1': x, 'k2': [k, v]})      # a result for each; a list is one value in parts

A value is written once and immutable until it is removed; to put a key that is there moves
nothing. Bytes move between the caller's memory and the nodes, without a copy in Python. Keys are
text (UTF-8) or bytes, 1 to 1024 long. Any store may be used from any thread; every call ends within
the option `timeout`, or its own argument of that name, in seconds; a put that no master answered
takes up to a tenth of it more, to give its keys back. `progress(done, total)` is called on the
caller's thread about five times a second while values move, and once they have, with bytes of at
most 1,024 values; what it raises ends the call.
"""
from __future__ import annotations

import ctypes
import itertools
import os
import threading
from array import array
from ctypes import byref, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from threading import current_thread, main_thread
from typing import Any, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Union

from ._abi import CONSTANTS, lib, mc_each, mc_key, mc_lend_options, mc_place
from ._calls import Call, ExistsKeys, GetKeys, GetRanges, Piece, PutKeys
from ._handle import Handle, close_with, using
from ._limits import Progress, Seconds, deadline, left, limited
from ._options import c_text, given, milliseconds
from ._pack import FlatKeys, Key, Results, decode, encode, pack_keys
from .blocks import HASH_BYTES, GetBlocks, Hashes, KvLayout, PutBlocks, Region, hash_count, joined
from .buffers import fresh_bytes, owned, span
from .engine import Engine, Memory, allocate
from .errors import CODES, Busy, NoSpace, NotFound, Put, Result, error
from .options import PutOptions
from .queue import Queue

_numbers = itertools.count()
_LONG, _ROUND = 0.2, 60.0  # seconds
_PLACES = 16  # more replicas of one value are not told


class Listed(NamedTuple):
    """A key that `Store.list` found, and how large its value is."""

    key: str
    bytes: int


class Place(NamedTuple):
    """Where a copy of a value lies. `tier` is 'memory' or 'disk'."""

    node: str
    tier: str
    bytes: int


class Health(NamedTuple):
    """Of the pool: nodes that are ready, and what they have free."""

    nodes: int
    free_bytes: int


class Offered:
    """Memory of this process in the pool. `close` takes it out again."""

    def __init__(self, parent: Handle, pointer: int, keep: Optional[Memory] = None) -> None:
        self._handle = Handle('memory in the pool', pointer, lib.mc_lent_free, parent, keep)
        close_with(self, self._handle)

    def close(self) -> None:
        """Leaves the pool, once its values have moved away and reads of them there have ended, or
        when `drain` is over."""
        self._handle.close()

    def __enter__(self) -> 'Offered':
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
            lib.mc_store_setup(c_text(self.name), c_text(master), chosen, byref(out))
        assert out.value is not None
        self._handle = Handle(f'store {self.name}', out.value, lib.mc_store_close)
        self._engine: Optional[Engine] = None
        self._lock = threading.Lock()
        close_with(self, self._handle)

    def _run(self, call: Call, timeout: Seconds = None,
             progress: Optional[Progress] = None) -> Any:
        if call.wait > _LONG and progress is None and current_thread() is main_thread():
            return self._run_beside(call, timeout)
        with limited(timeout, progress), self._handle as store:
            if call.uses:
                using(call.uses, call.begin, store, None, 0)
            else:
                call.begin(store, None, 0)
        call.end()
        return call.result()

    def _run_beside(self, call: Call, timeout: Seconds) -> Any:
        """On a queue, so that a signal ends the wait."""
        with self.queue(threads=1) as queue:
            flight = queue.begin(call, timeout=timeout)
            while not flight.done:
                queue.wait(_ROUND)
                queue.take()
            return flight.result()

    def _one(self, call: Union[PutKeys, GetKeys], timeout: Seconds,
             progress: Optional[Progress]) -> Result:
        """Of a call with one item; raises what failed, with its text."""
        with limited(timeout, progress), self._handle as store:
            using(call.uses, call.begin, store, None, 0)
            call.end()
            code = call.results.words[0]
            if code:
                raise error(code, lib.mc_last_error().decode(errors='replace'))
        return call.result()[call.keys[0]]

    # ---- one value

    def put(self, key: Key, value: Any, options: Optional[PutOptions] = None, *,
            timeout: Seconds = None, progress: Optional[Progress] = None) -> Put:
        """Stores the bytes of a buffer, or of a list of them. A key that is there is kept."""
        done = self._one(PutKeys([key], [value], options), timeout, progress).outcome
        assert done is not None
        return done

    def get(self, key: Key, *, timeout: Seconds = None,
            progress: Optional[Progress] = None) -> bytes:
        """The value. Raises `NotFound`, which is a `KeyError`, when there is none."""
        name, until = encode(key), deadline(timeout)
        for last in (False, False, True):
            size = self.size(key, timeout=left(until))
            value, address = fresh_bytes(size)
            try:
                moved = self._get(name, address, size, left(until), progress)
                break
            except NoSpace:  # a larger one took its place
                if last:
                    raise
        return value if moved == size else value[:moved]

    def get_into(self, key: Key, into: Any, *, timeout: Seconds = None,
                 progress: Optional[Progress] = None) -> int:
        """Fills a writable buffer, or a list of them, from the front. Returns the value's bytes."""
        if isinstance(into, (list, tuple)):
            return self._one(GetKeys([key], [into]), timeout, progress).bytes
        found = span(into, writable=True)
        return int(using(owned([found]), self._get, encode(key), found.address, found.bytes,
                         timeout, progress))

    def _get(self, name: bytes, address: int, capacity: int, timeout: Seconds,
             progress: Optional[Progress]) -> int:
        moved = c_size_t()
        with limited(timeout, progress), self._handle as store:
            lib.mc_store_get(store, name, len(name), address, capacity, byref(moved))
        return moved.value

    def size(self, key: Key, *, timeout: Seconds = None) -> int:
        """How many bytes the value has. It is leased, so that it stays for a read."""
        name, size = encode(key), c_size_t()
        with limited(timeout), self._handle as store:
            lib.mc_store_size(store, name, len(name), byref(size))
        return size.value

    def exists(self, key: Key, *, timeout: Seconds = None) -> bool:
        """Whether it is stored."""
        name, found = encode(key), c_int()
        with limited(timeout), self._handle as store:
            lib.mc_store_exists(store, name, len(name), byref(found))
        return bool(found.value)

    __contains__ = exists

    def remove(self, key: Key, force: bool = False, *, timeout: Seconds = None) -> None:
        """Raises `Busy` while it is leased to a reader, unless forced."""
        name = encode(key)
        with limited(timeout), self._handle as store:
            lib.mc_store_remove(store, name, len(name), force)

    def locate(self, key: Key, *, timeout: Seconds = None) -> List[Place]:
        """Where its copies lie. It is leased."""
        name, count = encode(key), c_size_t()
        places = (mc_place * _PLACES)()
        places[0].size = ctypes.sizeof(mc_place)
        with limited(timeout), self._handle as store:
            lib.mc_store_locate(store, mc_key(span(name).address, len(name)), places, _PLACES,
                                byref(count))
        return [Place(p.node.decode(), 'disk' if p.tier else 'memory', p.bytes)
                for p in places[:min(count.value, _PLACES)]]

    # ---- many values, in one round trip; items fail by themselves

    def put_many(self, items: Mapping[Key, Any], options: Optional[PutOptions] = None, *,
                 timeout: Seconds = None,
                 progress: Optional[Progress] = None) -> dict[Key, Result]:
        """Stores each value, which is a buffer or a list of them. A result for each key."""
        call = PutKeys(list(items), items.values(), options)
        done: dict[Key, Result] = self._run(call, timeout, progress)
        return done

    def get_many(self, keys: Iterable[Key], *, timeout: Seconds = None) -> dict[Key, bytes]:
        """The values that are there, by key."""
        found: dict[Key, bytes] = {}
        until = deadline(timeout)
        for key in dict.fromkeys(keys):
            try:
                found[key] = self.get(key, timeout=left(until))
            except NotFound:
                continue
        return found

    def get_many_into(self, items: Mapping[Key, Any], wait: float = 0.0, *,
                      timeout: Seconds = None,
                      progress: Optional[Progress] = None) -> dict[Key, Result]:
        """Fills a buffer, or a list of them, with each value; waits up to `wait` seconds for values
        that are not stored yet. A result for each key, with its bytes."""
        call = GetKeys(list(items), items.values(), wait)
        done: dict[Key, Result] = self._run(call, timeout, progress)
        return done

    def get_ranges(self, items: Mapping[Key, Sequence[Piece]], wait: float = 0.0, *,
                   timeout: Seconds = None,
                   progress: Optional[Progress] = None) -> dict[Key, Result]:
        """Parts of values, each to its place. A result for each key, with the bytes of its
        pieces; `Code.INVALID` when one ends beyond the value."""
        call = GetRanges(list(items), list(items.values()), wait)
        done: dict[Key, Result] = self._run(call, timeout, progress)
        return done

    def exists_many(self, keys: Sequence[Key], *, timeout: Seconds = None) -> List[bool]:
        """For each key, whether it is stored."""
        found: List[bool] = self._run(ExistsKeys(keys), timeout)
        return found

    def match_prefix(self, keys: Sequence[Key], *, timeout: Seconds = None) -> int:
        """How many of the keys, from the first, are stored without a gap. They are leased."""
        packed, matched = FlatKeys(keys), c_size_t()
        with limited(timeout), self._handle as store:
            lib.mc_store_match_keys(store, packed.native, byref(matched))
        return matched.value

    def remove_many(self, keys: Sequence[Key], force: bool = False, *,
                    timeout: Seconds = None) -> dict[Key, Result]:
        """Removes each; `Code.BUSY` for one that is leased to a reader, unless forced."""
        packed = FlatKeys(keys)
        codes = array('I', bytes(4 * packed.count))
        with limited(timeout), self._handle as store:
            lib.mc_store_remove_keys(store, packed.native, force, codes.buffer_info()[0])
        return {key: Result(CODES[code]) for key, code in zip(keys, codes)}

    def prefetch(self, keys: Sequence[Key], *, timeout: Seconds = None) -> int:
        """A hint that the keys will be read soon. Returns how many were on a disk only."""
        packed, requested = FlatKeys(keys), c_uint64()
        with limited(timeout), self._handle as store:
            lib.mc_store_prefetch_keys(store, packed.native, byref(requested))
        return requested.value

    # ---- what is stored

    def list(self, prefix: Key = '', limit: Optional[int] = None, *,
             timeout: Seconds = None) -> List[Listed]:
        """Keys that begin so, in order; at most `limit`. Each thousand is a round trip, and may
        take `timeout`."""
        found: List[Listed] = []
        errors: List[BaseException] = []
        name = encode(prefix)

        def each(_: Any, key: int, key_bytes: int, size: int) -> int:
            try:
                found.append(Listed(decode(ctypes.string_at(key, key_bytes)), size))
                return int(limit is not None and len(found) >= limit)
            except BaseException as e:  # as the interrupt of a user
                errors.append(e)
                return 1

        if limit != 0:
            with limited(timeout), self._handle as store:
                lib.mc_store_list(store, name, len(name), mc_each(each), None)
        if errors:
            raise errors[0]
        return found

    def remove_prefix(self, prefix: Key, force: bool = False, *, timeout: Seconds = None) -> int:
        """Removes the keys that begin so, all of the tenant's with an empty one. Returns how many.
        `Busy`, with `.removed`, when some are leased or pinned and stay; unless forced."""
        name, removed = encode(prefix), c_uint64()
        try:
            with limited(timeout), self._handle as store:
                lib.mc_store_remove_prefix(store, name, len(name), force, byref(removed))
        except Busy as e:
            setattr(e, 'removed', removed.value)
            raise
        return removed.value

    def health(self, timeout: float = 1.0) -> Health:
        """Whether the master answers in time, and what the pool has."""
        nodes, free = c_uint32(), c_uint64()
        with self._handle as store:
            lib.mc_store_health(store, milliseconds(timeout), byref(nodes), byref(free))
        return Health(nodes.value, free.value)

    # ---- blocks of a KV cache

    def layout(self, regions: Sequence[Region], blocks: int) -> KvLayout:
        """Where `blocks` blocks lie in memory, which is registered until the layout is closed."""
        return KvLayout(self._handle, regions, blocks)

    def match_blocks(self, prefixes: Sequence[Key], hashes: Hashes,
                     hash_bytes: int = HASH_BYTES, *, timeout: Seconds = None) -> int:
        """How many blocks, from the first, are stored without a gap under each of the prefixes.
        They are leased."""
        packed, hashed, matched = pack_keys(prefixes), joined(hashes), c_size_t()
        count = hash_count(hashed, hash_bytes)
        with limited(timeout), self._handle as store:
            lib.mc_store_match_blocks(store, packed.address, packed.count, hashed.address,
                                      hash_bytes, count, byref(matched))
        return matched.value

    def put_blocks(self, layout: KvLayout, prefix: Key, hashes: Hashes, blocks: Any, *,
                   regions: tuple[int, int] = (0, 0), options: Optional[PutOptions] = None,
                   hash_bytes: int = HASH_BYTES, timeout: Seconds = None,
                   progress: Optional[Progress] = None) -> Results:
        """Stores blocks by number, each under prefix and hash. `regions`: the first and how many,
        when a value is not all of them."""
        call = PutBlocks(layout, prefix, hashes, blocks, regions, hash_bytes)
        call.options = options
        done: Results = self._run(call, timeout, progress)
        return done

    def get_blocks(self, layout: KvLayout, prefix: Key, hashes: Hashes, blocks: Any, *,
                   regions: tuple[int, int] = (0, 0), wait: float = 0.0,
                   hash_bytes: int = HASH_BYTES, timeout: Seconds = None,
                   progress: Optional[Progress] = None) -> Results:
        """Fills blocks by number. What a block holds whose code is not 0 means nothing."""
        call = GetBlocks(layout, prefix, hashes, blocks, regions, hash_bytes)
        call.wait = wait
        done: Results = self._run(call, timeout, progress)
        return done

    # ---- memory, and calls that return at once

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

    def offer(self, size: int = 0, *, numa: Optional[int] = None, host: Optional[str] = None,
              domain: Optional[str] = None, drain: float = 0.0,
              memory: Optional[Memory] = None) -> Offered:
        """Adds memory of this process to the pool; what it holds is lost when the process ends.
        `drain`: for how long closing moves values to other nodes, at the end of the interpreter
        too. `memory`: allocated by this store's `engine` or registered there as writable: its first
        `size` bytes, or all of it. Nobody else writes there meanwhile."""
        out = c_void_p()
        parent = self._handle if memory is None else memory._handle
        with parent as given, self._handle as store:
            wanted = mc_lend_options(
                ctypes.sizeof(mc_lend_options), 0 if numa is None else numa + 1, size,
                None if memory is None else given, c_text(host) if host else None,
                c_text(domain) if domain else None, milliseconds(drain))
            lib.mc_store_lend(store, wanted, byref(out))
        assert out.value is not None
        return Offered(parent, out.value, memory)

    def queue(self, threads: int = 0, depth: int = 0) -> Queue:
        """For calls that return at once. 0: 2 threads, 4,096 calls."""
        return Queue(self, threads, depth)

    @property
    def engine(self) -> Engine:
        """The transfer engine beneath, which lives as long as the store."""
        with self._lock:
            if self._engine is None:
                with self._handle as store:
                    pointer = lib.mc_store_engine(store)
                below = Handle(f'the engine of {self.name}', pointer, bool, self._handle)
                self._engine = Engine._of_store(below, self)
            return self._engine

    def close(self) -> None:
        """Waits for the calls on it in other threads, and frees its memory first."""
        self._handle.close()

    def __enter__(self) -> 'Store':
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def features() -> frozenset[str]:
    """What the library has, and this machine can do now: 'queue', 'blocks', 'cuda', ..."""
    has: int = lib.mc_features()
    return frozenset(name.removeprefix('MC_FEATURE_').lower() for name, bit in CONSTANTS.items()
                     if name.startswith('MC_FEATURE_') and has & bit)
