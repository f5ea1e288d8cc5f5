"""`mooncake.store` over mc: MooncakeDistributedStore.

Calls return numbers, as theirs do: 0 or bytes, or a negative code (codes.py). What mc has no
counterpart for raises NotImplementedError; nothing pretends to have worked.
"""
from __future__ import annotations

import ctypes
import functools
import itertools
import os
import threading
from typing import Any, Callable, List, Optional, Sequence, Union

from ... import store as ours
from ..._calls import GetKeys, GetRanges, Piece, PutKeys
from ..._pack import Key, encode
from ...buffers import Span, span
from ...engine import Memory
from ...errors import Busy, Code, McError, NotFound
from . import codes, patterns
from .arguments import flag, lists, storable
from .config import (ObjectDataType, Refused, ReplicateConfig, SoftPinAction, ignored, put_options,
                     shared_options, size_of, true_of)
from .descriptors import (COMPLETE, Descriptor, DiskDescriptor, MemoryDescriptor, ReplicaDescriptor,
                          ReplicaStatus, describe)
from .refusals import Refusals, bind_to_numa_node
from .sessions import Sessions
from .tensors import Tensors

__all__ = ['BufferHandle', 'COMPLETE', 'Descriptor', 'DiskDescriptor', 'MemoryDescriptor',
           'MooncakeDistributedStore', 'MooncakeHostMemAllocator', 'ObjectDataType',
           'ReplicaDescriptor', 'ReplicaStatus', 'ReplicateConfig', 'SoftPinAction',
           'bind_to_numa_node']

SETUP_SECONDS, HEALTH_SECONDS = 5.0, 3.0
_numbers = itertools.count()
Pieces = Sequence[Sequence[int]]


class BufferHandle(bytearray):
    """A value in memory of its own."""

    def ptr(self) -> int:
        """Where it lies."""
        return span(self, writable=True).address

    def size(self) -> int:
        """How large it is."""
        return len(self)


class MooncakeHostMemAllocator:
    """Memory of the host, by address."""

    def __init__(self) -> None:
        self._blocks: dict[int, Any] = {}

    def alloc(self, size: int) -> int:
        """An address."""
        block = (ctypes.c_char * size)()
        self._blocks[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def free(self, address: int) -> int:
        """0, or -1 when it is none of its addresses."""
        return 0 if self._blocks.pop(address, None) is not None else -1


def _coded(absent: Any = codes.NOT_SET_UP) -> Callable[[Any], Any]:
    """Failures as codes; `absent` is what the method gives before setup: a value, or a function of
    its first argument."""
    def wrap(method: Any) -> Any:
        @functools.wraps(method)
        def call(self: 'MooncakeDistributedStore', *words: Any, **named: Any) -> Any:
            if self._store is None:
                first = words[0] if words else next(iter(named.values()), ())
                return absent(first) if callable(absent) else absent
            try:
                return method(self, *words, **named)
            except Refused:
                return codes.UNSUPPORTED
            except McError as e:
                return codes.of_error(e)
            except (OverflowError, ctypes.ArgumentError) as e:
                raise TypeError(f'{method.__name__}: {e}') from None
        return call
    return wrap


def _each(keys: Sequence[Any]) -> List[int]:
    return [codes.NOT_SET_UP] * len(keys)


def _span(address: int, size: int) -> Span:
    return Span(address, size, None)


def _bytes_of(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_bytes_of, value))
    return value.nbytes if isinstance(value, memoryview) else value.bytes


def _spans(addresses: Sequence[int], sizes: Sequence[int]) -> List[Span]:
    return [Span(address, size, None) for address, size in zip(addresses, sizes)]


def _of_get(code: int, key: Key) -> int:
    """Of a read or a removal: what cannot be stored is not there."""
    return codes.of(code) if storable(key) else codes.ABSENT


class MooncakeDistributedStore(Sessions, Tensors, Refusals):
    """A client of the pool, and a part of it when `global_segment_size` is not 0."""

    def __init__(self) -> None:
        super().__init__()
        self._store: Optional[ours.Store] = None
        self._offered: Optional[ours.Offered] = None
        self._memories: dict[int, Memory] = {}
        self._lock = threading.Lock()

    # ---- setup

    def setup(self, local_hostname: Union[str, dict[str, Any]], metadata_server: str = '',
              global_segment_size: Union[int, str] = 16 << 20,
              local_buffer_size: Union[int, str] = 16 << 20, protocol: str = 'tcp',
              rdma_devices: str = '', master_server_addr: str = '127.0.0.1:50051',
              engine: Any = None, enable_ssd_offload: Any = False, ssd_offload_path: str = '',
              tenant_id: str = 'default', enable_client_http_server: Any = False,
              client_http_port: Any = 9300, **more: Any) -> int:
        """0, or a code. The first argument may be a dictionary of all of them."""
        if isinstance(local_hostname, dict):
            return self.setup(**local_hostname)
        if true_of(enable_ssd_offload):  # a node's business: mc-store serve --ssd
            return codes.UNSUPPORTED
        ignored(metadata_server=metadata_server, engine=engine, ssd_offload_path=ssd_offload_path,
                enable_client_http_server=true_of(enable_client_http_server), **more)
        try:
            options = shared_options(protocol, rdma_devices)
            self._open(local_hostname, master_server_addr, size_of(local_buffer_size),
                       '' if tenant_id == 'default' else tenant_id, options)
            if size_of(global_segment_size) > 0:
                assert self._store is not None
                self._offered = self._store.offer(size_of(global_segment_size))
            return 0
        except Refused:
            return codes.UNSUPPORTED
        except ValueError:  # sizes, and options that the library refuses
            self.close()
            return codes.INVALID
        except McError as e:
            self.close()
            return codes.of_error(e)

    def _open(self, host: str, master: str, cache: int, tenant: str,
              options: dict[str, Any]) -> None:
        name = f'{host}-{os.getpid()}-{next(_numbers)}'
        store = ours.Store(master, name, near_cache=cache, tenant=tenant or None, **options)
        try:
            store.health(SETUP_SECONDS)
            store.exists('-')  # waits for nodes that a master just started expects
        except McError:
            store.close()
            raise
        self._store = store

    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """A client that adds nothing to the pool."""
        return self.setup('dummy', '', 0, local_buffer_size, 'tcp', '', server_address)

    def close(self) -> int:
        """0, also when there is nothing to close."""
        store, self._store = self._store, None
        self._offered = None
        self._memories.clear()
        self._end_sessions()
        if store is not None:
            store.close()
        return 0

    def health_check(self) -> int:
        """0: well; 1: not set up; 2: the master is gone."""
        if self._store is None:
            return 1
        try:
            self._store.health(HEALTH_SECONDS)
            return 0
        except McError:
            return 2

    @_coded('')
    def get_hostname(self) -> Any:
        """Where peers reach this client: host:port."""
        assert self._store is not None
        return self._store.engine.address

    # ---- puts

    def _put(self, keys: Sequence[Key], values: Sequence[Any], config: Optional[ReplicateConfig],
             replace: bool = False, last: bool = False) -> List[int]:
        assert self._store is not None
        how = put_options(config, replace, len(keys))
        if not lists(keys, values):
            return [codes.INVALID] * len(keys)
        full = [bool(_bytes_of(value)) for value in values]  # what has no bytes is not stored: -600
        if how.code or not all(full):
            list(map(encode, keys))  # those are not looked at below
        if how.code:
            return [how.code if some else codes.INVALID for some in full]
        pairs = [(key, value) for key, value, some in zip(keys, values, full) if some]
        once = dict(pairs if last else reversed(pairs))  # of a key that is there twice
        done: dict[Key, int] = {}
        for options, names in how.shares(keys):
            names = [key for key in names if key in once and key not in done]
            call = PutKeys(names, [once[key] for key in names], options)
            self._store._run(call)
            done.update(zip(names, map(codes.of_put, call.results.codes)))
        return [done[key] if some else codes.INVALID for key, some in zip(keys, full)]

    def _put_all(self, keys: Sequence[Key], values: Sequence[Any],
                 config: Optional[ReplicateConfig], replace: bool = False) -> int:
        if not lists(keys, values) or not all(map(_bytes_of, values)):
            list(map(encode, keys))
            put_options(config)
            return codes.INVALID  # all of it, as theirs
        done = self._put(keys, values, config, replace)
        return next((code for code in done if code), 0)

    def _put_some(self, key: Key, value: Any, config: Optional[ReplicateConfig],
                  replace: bool = False) -> int:
        """One value. Of no bytes it is not stored, and 0, as theirs."""
        return self._put_all([key], [value], config, replace) if _bytes_of(value) else 0

    @_coded()
    def put(self, key: str, value: Any, config: Optional[ReplicateConfig] = None) -> Any:
        """A key that is there is kept: 0."""
        return self._put_all([key], [memoryview(value)], config)

    @_coded()
    def put_parts(self, key: str, *parts: Any, config: Optional[ReplicateConfig] = None) -> Any:
        """One value of several buffers."""
        return self._put_some(key, list(map(memoryview, parts)), config)

    @_coded()
    def put_batch(self, keys: Sequence[str], values: Sequence[Any],
                  config: Optional[ReplicateConfig] = None) -> Any:
        """The first failure, else 0."""
        return self._put_all(keys, list(map(memoryview, values)), config)

    @_coded()
    def put_from(self, key: str, buffer_ptr: int, size: int,
                 config: Optional[ReplicateConfig] = None) -> Any:
        """From memory by address."""
        return self._put_some(key, _span(buffer_ptr, size), config)

    @_coded(_each)
    def batch_put_from(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int],
                       config: Optional[ReplicateConfig] = None) -> Any:
        """From memory by address; a code for each."""
        return self._put_at(keys, buffer_ptrs, sizes, config, False)

    def _put_at(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int],
                config: Optional[ReplicateConfig], replace: bool) -> List[int]:
        if not lists(keys, buffer_ptrs, sizes):
            return [codes.INVALID] * len(keys)
        return self._put(keys, _spans(buffer_ptrs, sizes), config, replace, last=True)

    @_coded()
    def put_from_with_metadata(self, key: str, buffer_ptr: int, metadata_buffer_ptr: int, size: int,
                               metadata_size: int, config: Optional[ReplicateConfig] = None) -> Any:
        """The metadata comes first in the value."""
        parts = [_span(metadata_buffer_ptr, metadata_size), _span(buffer_ptr, size)]
        return self._put_some(key, parts if size else [], config)

    @_coded(lambda _: [])
    def batch_put_from_multi_buffers(self, keys: Sequence[str], all_buffer_ptrs: Pieces,
                                     all_sizes: Pieces,
                                     config: Optional[ReplicateConfig] = None) -> Any:
        """Values that lie in several places each; a code for each."""
        if not lists(keys, all_buffer_ptrs, all_sizes) or not all(
                map(lists, all_buffer_ptrs, all_sizes)):
            return [codes.INVALID] * len(keys)
        return self._put(keys, list(map(_spans, all_buffer_ptrs, all_sizes)), config)

    @_coded()
    def upsert(self, key: str, value: Any, config: Optional[ReplicateConfig] = None) -> Any:
        """As put; what is there is replaced."""
        return self._put_all([key], [memoryview(value)], config, True)

    @_coded()
    def upsert_parts(self, key: str, *parts: Any, config: Optional[ReplicateConfig] = None) -> Any:
        """As put_parts; what is there is replaced."""
        return self._put_some(key, list(map(memoryview, parts)), config, True)

    @_coded()
    def upsert_batch(self, keys: Sequence[str], values: Sequence[Any],
                     config: Optional[ReplicateConfig] = None) -> Any:
        """As put_batch; what is there is replaced."""
        return self._put_all(keys, list(map(memoryview, values)), config, True)

    @_coded()
    def upsert_from(self, key: str, buffer_ptr: int, size: int,
                    config: Optional[ReplicateConfig] = None) -> Any:
        """As put_from; what is there is replaced."""
        return self._put_some(key, _span(buffer_ptr, size), config, True)

    @_coded(_each)
    def batch_upsert_from(self, keys: Sequence[str], buffer_ptrs: Sequence[int],
                          sizes: Sequence[int], config: Optional[ReplicateConfig] = None) -> Any:
        """As batch_put_from; what is there is replaced."""
        return self._put_at(keys, buffer_ptrs, sizes, config, True)

    # ---- gets

    def _get(self, keys: Sequence[Key], values: Sequence[Any]) -> List[int]:
        """Bytes of each, or its code."""
        assert self._store is not None
        call = GetKeys(keys, values)
        self._store._run(call)
        return [_of_get(code, key) if code else size
                for code, size, key in zip(call.results.codes, call.results.bytes, keys)]

    @_coded(b'')
    def _bytes(self, key: str) -> Any:
        assert self._store is not None
        return self._store.get(key)

    def get(self, key: str) -> bytes:
        """The value; b'' when it is absent or not readable."""
        value = self._bytes(key)
        return value if isinstance(value, bytes) else b''

    def get_batch(self, keys: Sequence[str]) -> List[bytes]:
        """The values, b'' for those that are absent or not readable; one b'' for no keys."""
        lists(keys)
        return [self.get(key) for key in keys] or [b'']

    def get_buffer(self, key: str) -> Optional[BufferHandle]:
        """The value in memory of its own; None when it is absent or not readable."""
        size = self.get_size(key)
        if size < 0:
            return None
        handle = BufferHandle(size)
        return handle if self._get_into([key], [handle]) == [size] else None

    def batch_get_buffer(self, keys: Sequence[str]) -> List[Optional[BufferHandle]]:
        """As get_buffer, for each."""
        lists(keys)
        return [self.get_buffer(key) for key in keys]

    @_coded(_each)
    def _get_into(self, keys: Sequence[Key], values: Sequence[Any]) -> Any:
        return self._get(keys, values)

    @_coded()
    def get_into(self, key: str, buffer_ptr: int, size: int) -> Any:
        """The value's bytes, or a code."""
        return self._get([key], [_span(buffer_ptr, size)])[0]

    @_coded(_each)
    def batch_get_into(self, keys: Sequence[str], buffer_ptrs: Sequence[int],
                       sizes: Sequence[int]) -> Any:
        """For each the value's bytes, or a code."""
        if not lists(keys, buffer_ptrs, sizes):
            return [codes.INVALID] * len(keys)
        return self._get(keys, _spans(buffer_ptrs, sizes))

    @_coded(lambda _: [])
    def batch_get_into_multi_buffers(self, keys: Sequence[str], all_buffer_ptrs: Pieces,
                                     all_sizes: Pieces,
                                     prefer_alloc_in_same_node: bool = False) -> Any:
        """Values into several places each: their bytes, or a code. The places are as large as the
        value, or it is -800 (theirs has moved nothing then, ours may have)."""
        if not lists(keys, all_buffer_ptrs, all_sizes):
            return [codes.INVALID] * len(keys)
        done = self._get(keys, list(map(_spans, all_buffer_ptrs, all_sizes)))
        return [codes.MOVED_OTHER if code >= 0 and code != sum(sizes) else code
                for code, sizes in zip(done, all_sizes)]

    @_coded(_each)
    def _ranges(self, keys: Sequence[Key], pieces: Sequence[Sequence[Piece]]) -> Any:
        assert self._store is not None
        call = GetRanges(keys, pieces)
        self._store._run(call)
        return [_of_get(code, key) if code else size
                for code, size, key in zip(call.results.codes, call.results.bytes, keys)]

    def get_into_ranges(self, buffer_ptrs: Sequence[int], all_keys: Sequence[Sequence[str]],
                        all_dst_offsets: Sequence[Pieces], all_src_offsets: Sequence[Pieces],
                        all_sizes: Sequence[Pieces]) -> List[List[List[int]]]:
        """Parts of values, by buffer, key and fragment: bytes or a code. The buffers are
        registered, and lists that do not fit each other are -600 throughout."""
        whole = lists(buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, all_sizes) and all(
            lists(*each) and all(map(lists, *each[1:]))
            for each in zip(all_keys, all_dst_offsets, all_src_offsets, all_sizes))
        if not whole:
            return [[[codes.INVALID for _ in places] for places in of_key]
                    for of_key in all_dst_offsets]
        asked, pieces = [], []
        for base, keys, *parts in zip(buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets,
                                      all_sizes):
            for key, *fragments in zip(keys, *parts):
                for to, begin, size in zip(*fragments):
                    known = self._registered(base + to, size)
                    asked.append(key if known else None)
                    if known:
                        pieces.append([Piece(_span(base + to, size), begin)])
        done = iter(self._ranges([key for key in asked if key is not None], pieces))
        each = (codes.INVALID if key is None else next(done) for key in asked)
        return [[[next(each) for _ in sizes] for sizes in of_key] for of_key in all_sizes]

    def _registered(self, address: int, size: int) -> bool:
        with self._lock:
            return any(m.address <= address and address + size <= m.address + m.nbytes
                       for m in self._memories.values())

    # ---- what is there

    @_coded()
    def is_exist(self, key: str) -> Any:
        """1, 0, or a code. What is there is leased."""
        size = self.get_size(key)
        return 0 if size == codes.ABSENT else min(size, 1) or 1

    @_coded(_each)
    def _exist(self, keys: Sequence[str]) -> Any:
        assert self._store is not None
        found = self._store.exists_many(keys)
        there = [key for key, is_there in zip(keys, found) if is_there]
        if there:
            self._store.match_prefix(there)  # leases them
        return list(map(int, found))

    def batch_is_exist(self, keys: Sequence[str]) -> List[int]:
        """1 or 0 for each; all -1 when the call fails. What is there is leased."""
        lists(keys)
        found = self._exist(keys)
        return found if isinstance(found, list) else [-1] * len(keys)

    @_coded()
    def get_size(self, key: str) -> Any:
        """Bytes, or a code."""
        assert self._store is not None
        return self._store.size(key) if storable(key) else codes.ABSENT

    def get_replica_desc(self, key: str) -> List[ReplicaDescriptor]:
        """Where copies lie; none when the key is absent."""
        if self._store is None:
            return []
        try:
            return [describe(place) for place in self._store.locate(key)]
        except (NotFound, McError):
            return []

    def batch_get_replica_desc(self, keys: Sequence[str]) -> dict[str, List[ReplicaDescriptor]]:
        """Where copies lie, of each key that is there."""
        lists(keys)
        found = {key: self.get_replica_desc(key) for key in keys}
        return {key: places for key, places in found.items() if places}

    # ---- removal

    @_coded(_each)
    def batch_remove(self, keys: Sequence[str], force: bool = False) -> Any:
        """A code for each."""
        assert self._store is not None
        lists(keys)
        names = [key for key in dict.fromkeys(keys) if storable(key)]
        done = self._store.remove_many(names, flag(force))
        found = {key: codes.of_remove(done[key].code) for key in names}
        again = {key: codes.ABSENT if code == 0 else code for key, code in found.items()}
        return [(again if key in keys[:n] else found).get(key, codes.ABSENT)
                for n, key in enumerate(keys)]

    def remove(self, key: str, force: bool = False) -> int:
        """0, or a code: -706 while it is leased."""
        done = self.batch_remove([key], force)
        code: int = done[0] if isinstance(done, list) else done
        return code

    @_coded()
    def remove_all(self, force: bool = False) -> Any:
        """How many were removed."""
        assert self._store is not None
        try:
            return self._store.remove_prefix('', flag(force))
        except Busy as e:
            return getattr(e, 'removed', 0)

    @_coded()
    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> Any:
        """How many were removed; -600 for a pattern (ECMAScript) that does not compile."""
        assert self._store is not None
        try:
            pattern = patterns.compiled(regex_pattern)
        except ValueError:
            return codes.INVALID
        keys = [listed.key for listed in self._store.list() if pattern.search(encode(listed.key))]
        return sum(r.code is Code.OK for r in self._store.remove_many(keys, flag(force)).values())

    # ---- memory

    @_coded()
    def register_buffer(self, buffer_ptr: int, size: int) -> Any:
        """0, or a code: -600 when a part of it is registered already."""
        assert self._store is not None
        with self._lock:
            if any(m.address < buffer_ptr + size and buffer_ptr < m.address + m.nbytes
                   for m in self._memories.values()):
                return codes.INVALID
            self._memories[buffer_ptr] = self._store.register(_span(buffer_ptr, size))
        return 0

    @_coded()
    def unregister_buffer(self, buffer_ptr: int) -> Any:
        """0, or -600 when it is not registered."""
        with self._lock:
            memory = self._memories.pop(buffer_ptr, None)
        if memory is None:
            return codes.INVALID
        memory.close()
        return 0
