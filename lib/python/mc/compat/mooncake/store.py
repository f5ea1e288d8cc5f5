"""`mooncake.store` over mc: MooncakeDistributedStore.

Calls return numbers, as theirs do: 0 or bytes, or a negative code (codes.py). What mc has no
counterpart for raises NotImplementedError; nothing pretends to have worked.
"""
from __future__ import annotations

import ctypes
import functools
import itertools
import os
import re
import threading
from typing import Any, Callable, List, Optional, Sequence, Union

from ... import store as ours
from ..._calls import GetKeys, GetRanges, Piece, PutKeys
from ..._pack import Key
from ...buffers import Span, span
from ...engine import Memory
from ...errors import Busy, Code, McError, NotFound
from . import codes
from .config import (ObjectDataType, Refused, ReplicateConfig, SoftPinAction, ignored, put_options,
                     shared_options, size_of, true_of)
from .descriptors import (COMPLETE, Descriptor, DiskDescriptor, MemoryDescriptor, ReplicaDescriptor,
                          ReplicaStatus, describe)
from .refusals import Refusals, bind_to_numa_node
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
        return call
    return wrap


def _each(keys: Sequence[Any]) -> List[int]:
    return [codes.NOT_SET_UP] * len(keys)


def _span(address: int, size: int) -> Span:
    return Span(address, size, None)


def _spans(addresses: Sequence[int], sizes: Sequence[int]) -> List[Span]:
    return [Span(address, size, None) for address, size in zip(addresses, sizes)]


class MooncakeDistributedStore(Tensors, Refusals):
    """A client of the pool, and a part of it when `global_segment_size` is not 0."""

    def __init__(self) -> None:
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
             replace: bool = False) -> List[int]:
        assert self._store is not None
        once = dict(zip(reversed(keys), reversed(values)))  # a key that is there twice: its first
        call = PutKeys(list(once), once.values(), put_options(config, replace))
        self._store._run(call)
        done = dict(zip(once, map(codes.of_put, call.results.codes)))
        return [done[key] for key in keys]

    def _put_all(self, keys: Sequence[Key], values: Sequence[Any],
                 config: Optional[ReplicateConfig], replace: bool = False) -> int:
        return next((code for code in self._put(keys, values, config, replace) if code), 0)

    @_coded()
    def put(self, key: str, value: Any, config: Optional[ReplicateConfig] = None) -> Any:
        """A key that is there is kept: 0."""
        return self._put_all([key], [memoryview(value)], config)

    @_coded()
    def put_parts(self, key: str, *parts: Any, config: Optional[ReplicateConfig] = None) -> Any:
        """One value of several buffers."""
        return self._put_all([key], [list(parts)], config)

    @_coded()
    def put_batch(self, keys: Sequence[str], values: Sequence[Any],
                  config: Optional[ReplicateConfig] = None) -> Any:
        """The first failure, else 0."""
        return self._put_all(keys, values, config)

    @_coded()
    def put_from(self, key: str, buffer_ptr: int, size: int,
                 config: Optional[ReplicateConfig] = None) -> Any:
        """From memory by address."""
        return self._put_all([key], [_span(buffer_ptr, size)], config)

    @_coded(_each)
    def batch_put_from(self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int],
                       config: Optional[ReplicateConfig] = None) -> Any:
        """From memory by address; a code for each."""
        return self._put(keys, _spans(buffer_ptrs, sizes), config)

    @_coded()
    def put_from_with_metadata(self, key: str, buffer_ptr: int, metadata_buffer_ptr: int, size: int,
                               metadata_size: int, config: Optional[ReplicateConfig] = None) -> Any:
        """The metadata comes first in the value."""
        parts = [_span(metadata_buffer_ptr, metadata_size), _span(buffer_ptr, size)]
        return self._put_all([key], [parts], config)

    @_coded(lambda _: [])
    def batch_put_from_multi_buffers(self, keys: Sequence[str], all_buffer_ptrs: Pieces,
                                     all_sizes: Pieces,
                                     config: Optional[ReplicateConfig] = None) -> Any:
        """Values that lie in several places each; a code for each."""
        return self._put(keys, list(map(_spans, all_buffer_ptrs, all_sizes)), config)

    @_coded()
    def upsert(self, key: str, value: Any, config: Optional[ReplicateConfig] = None) -> Any:
        """As put; what is there is replaced."""
        return self._put_all([key], [memoryview(value)], config, True)

    @_coded()
    def upsert_parts(self, key: str, *parts: Any, config: Optional[ReplicateConfig] = None) -> Any:
        """As put_parts; what is there is replaced."""
        return self._put_all([key], [list(parts)], config, True)

    @_coded()
    def upsert_batch(self, keys: Sequence[str], values: Sequence[Any],
                     config: Optional[ReplicateConfig] = None) -> Any:
        """As put_batch; what is there is replaced."""
        return self._put_all(keys, values, config, True)

    @_coded()
    def upsert_from(self, key: str, buffer_ptr: int, size: int,
                    config: Optional[ReplicateConfig] = None) -> Any:
        """As put_from; what is there is replaced."""
        return self._put_all([key], [_span(buffer_ptr, size)], config, True)

    @_coded(_each)
    def batch_upsert_from(self, keys: Sequence[str], buffer_ptrs: Sequence[int],
                          sizes: Sequence[int], config: Optional[ReplicateConfig] = None) -> Any:
        """As batch_put_from; what is there is replaced."""
        return self._put(keys, _spans(buffer_ptrs, sizes), config, True)

    # ---- gets

    def _get(self, keys: Sequence[Key], values: Sequence[Any]) -> List[int]:
        """Bytes of each, or its code."""
        assert self._store is not None
        call = GetKeys(keys, values)
        self._store._run(call)
        return [codes.of(code) if code else size
                for code, size in zip(call.results.codes, call.results.bytes)]

    @_coded(b'')
    def _bytes(self, key: str) -> Any:
        assert self._store is not None
        return self._store.get(key)

    def get(self, key: str) -> bytes:
        """The value; b'' when it is absent or not readable."""
        value = self._bytes(key)
        return value if isinstance(value, bytes) else b''

    def get_batch(self, keys: Sequence[str]) -> List[bytes]:
        """The values, b'' for those that are absent or not readable."""
        return [self.get(key) for key in keys]

    def get_buffer(self, key: str) -> Optional[BufferHandle]:
        """The value in memory of its own; None when it is absent or not readable."""
        size = self.get_size(key)
        if size < 0:
            return None
        handle = BufferHandle(size)
        return handle if self._get_into([key], [handle]) == [size] else None

    def batch_get_buffer(self, keys: Sequence[str]) -> List[Optional[BufferHandle]]:
        """As get_buffer, for each."""
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
        return self._get(keys, _spans(buffer_ptrs, sizes))

    @_coded(lambda _: [])
    def batch_get_into_multi_buffers(self, keys: Sequence[str], all_buffer_ptrs: Pieces,
                                     all_sizes: Pieces,
                                     prefer_alloc_in_same_node: bool = False) -> Any:
        """Values into several places each: their bytes, or a code."""
        return self._get(keys, list(map(_spans, all_buffer_ptrs, all_sizes)))

    @_coded(_each)
    def _ranges(self, keys: Sequence[Key], pieces: Sequence[Sequence[Piece]]) -> Any:
        assert self._store is not None
        call = GetRanges(keys, pieces)
        self._store._run(call)
        return [codes.of(code) if code else size
                for code, size in zip(call.results.codes, call.results.bytes)]

    def get_into_ranges(self, buffer_ptrs: Sequence[int], all_keys: Sequence[Sequence[str]],
                        all_dst_offsets: Sequence[Pieces], all_src_offsets: Sequence[Pieces],
                        all_sizes: Sequence[Pieces]) -> List[List[List[int]]]:
        """Parts of values, by buffer, key and fragment: bytes or a code."""
        names, pieces = [], []
        for base, keys, *parts in zip(buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets,
                                      all_sizes):
            for key, *fragments in zip(keys, *parts):
                for to, begin, size in zip(*fragments):
                    names.append(key)
                    pieces.append([Piece(_span(base + to, size), begin)])
        done = iter(self._ranges(names, pieces))
        return [[[next(done) for _ in sizes] for sizes in of_key] for of_key in all_sizes]

    def batch_get_into_multi_buffer_ranges(self, keys: Sequence[str], all_buffer_ptrs: Pieces,
                                           all_sizes: Pieces, all_src_offsets: Pieces) -> List[int]:
        """Parts of values, several of each: their bytes, or a code."""
        pieces = [[Piece(_span(to, size), begin) for to, size, begin in zip(*parts)]
                  for parts in zip(all_buffer_ptrs, all_sizes, all_src_offsets)]
        done: List[int] = self._ranges(keys, pieces)
        return done

    def batch_get_session_start(self, keys: Sequence[str]) -> List[int]:
        """Leases each, so that it stays: 0, or a code."""
        return [min(self.get_size(key), 0) for key in keys]

    def batch_get_session_end(self, keys: Sequence[str]) -> int:
        """0: leases end by themselves."""
        return 0 if self._store is not None else codes.NOT_SET_UP

    # ---- what is there

    @_coded()
    def is_exist(self, key: str) -> Any:
        """1, 0, or a code."""
        assert self._store is not None
        return int(self._store.exists(key))

    @_coded(_each)
    def _exist(self, keys: Sequence[str]) -> Any:
        assert self._store is not None
        return list(map(int, self._store.exists_many(keys)))

    def batch_is_exist(self, keys: Sequence[str]) -> List[int]:
        """1 or 0 for each; all -1 when the call fails."""
        found = self._exist(keys)
        return found if isinstance(found, list) else [-1] * len(keys)

    @_coded()
    def get_size(self, key: str) -> Any:
        """Bytes, or a code."""
        assert self._store is not None
        return self._store.size(key)

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
        found = {key: self.get_replica_desc(key) for key in keys}
        return {key: places for key, places in found.items() if places}

    # ---- removal

    @_coded(_each)
    def batch_remove(self, keys: Sequence[str], force: bool = False) -> Any:
        """A code for each."""
        assert self._store is not None
        done = self._store.remove_many(keys, force)
        return [codes.of_remove(done[key].code) for key in keys]

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
            return self._store.remove_prefix('', force)
        except Busy as e:
            return getattr(e, 'removed', 0)

    @_coded()
    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> Any:
        """How many were removed; -600 for a pattern that does not compile."""
        assert self._store is not None
        try:
            pattern = re.compile(regex_pattern)
        except re.error:
            return codes.INVALID
        keys = [listed.key for listed in self._store.list() if pattern.search(listed.key)]
        return sum(r.code is Code.OK for r in self._store.remove_many(keys, force).values())

    # ---- memory

    @_coded()
    def register_buffer(self, buffer_ptr: int, size: int) -> Any:
        """0, or a code: -600 when it is registered already."""
        assert self._store is not None
        with self._lock:
            if buffer_ptr in self._memories:
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
