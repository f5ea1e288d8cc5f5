"""`mooncake.store` over mc: MooncakeDistributedStore.

Calls return numbers, as theirs do: 0 or bytes, or a negative code (codes.py). What mc has no
counterpart for raises NotImplementedError; nothing pretends to have worked.
"""
from __future__ import annotations

import ctypes
import itertools
import os
import threading
from typing import Any, List, Optional, Sequence, Union

from ... import store as ours
from ..._pack import encode
from ...engine import Memory
from ...errors import Busy, Code, McError, NotFound
from . import codes, patterns
from .arguments import flag, lists, storable
from .coded import coded, each, span
from .config import (ObjectDataType, Refused, ReplicateConfig, SoftPinAction, ignored,
                     shared_options, size_of, true_of)
from .descriptors import (COMPLETE, Descriptor, DiskDescriptor, MemoryDescriptor, ReplicaDescriptor,
                          ReplicaStatus, describe)
from .gets import BufferHandle, Gets
from .puts import Puts
from .refusals import Refusals, bind_to_numa_node
from .sessions import Sessions
from .tensors import Tensors

__all__ = ['BufferHandle', 'COMPLETE', 'Descriptor', 'DiskDescriptor', 'MemoryDescriptor',
           'MooncakeDistributedStore', 'MooncakeHostMemAllocator', 'ObjectDataType',
           'ReplicaDescriptor', 'ReplicaStatus', 'ReplicateConfig', 'SoftPinAction',
           'bind_to_numa_node']

SETUP_SECONDS, HEALTH_SECONDS = 5.0, 3.0
_numbers = itertools.count()


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


class MooncakeDistributedStore(Puts, Gets, Sessions, Tensors, Refusals):
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

    @coded('')
    def get_hostname(self) -> Any:
        """Where peers reach this client: host:port."""
        assert self._store is not None
        return self._store.engine.address

    # ---- what is there

    @coded()
    def is_exist(self, key: str) -> Any:
        """1, 0, or a code. What is there is leased."""
        size = self.get_size(key)
        return 0 if size == codes.ABSENT else min(size, 1) or 1

    @coded(each)
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

    @coded()
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

    @coded(each)
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

    @coded()
    def remove_all(self, force: bool = False) -> Any:
        """How many were removed."""
        assert self._store is not None
        try:
            return self._store.remove_prefix('', flag(force))
        except Busy as e:
            return getattr(e, 'removed', 0)

    @coded()
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

    def _registered(self, address: int, size: int) -> bool:
        with self._lock:
            return any(m.address <= address and address + size <= m.address + m.nbytes
                       for m in self._memories.values())

    @coded()
    def register_buffer(self, buffer_ptr: int, size: int) -> Any:
        """0, or a code: -600 when a part of it is registered already."""
        assert self._store is not None
        with self._lock:
            if any(m.address < buffer_ptr + size and buffer_ptr < m.address + m.nbytes
                   for m in self._memories.values()):
                return codes.INVALID
            self._memories[buffer_ptr] = self._store.register(span(buffer_ptr, size))
        return 0

    @coded()
    def unregister_buffer(self, buffer_ptr: int) -> Any:
        """0, or -600 when it is not registered."""
        with self._lock:
            memory = self._memories.pop(buffer_ptr, None)
        if memory is None:
            return codes.INVALID
        memory.close()
        return 0
