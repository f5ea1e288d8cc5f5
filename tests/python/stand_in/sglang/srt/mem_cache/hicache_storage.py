"""Our reading of SGLang's storage interface. tests/nightly/sglang_storage.py drives the real one."""

import enum
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Optional


@dataclass
class HiCacheStorageConfig:
    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    attn_cp_rank: int
    attn_cp_size: int
    is_mla_model: bool
    enable_storage_metrics: bool
    is_page_first_layout: bool
    model_name: Optional[str]
    tp_lcm_size: Optional[int] = None
    should_split_heads: bool = False
    dp_rank: int = 0
    extra_config: Optional[dict] = None
    dcp_size: int = 1
    dcp_rank: int = 0
    logical_page_size: Optional[int] = None

    @property
    def is_storage_writer(self):
        return not self.is_mla_model or self.tp_rank == self.dcp_rank


@dataclass
class HiCacheStorageExtraInfo:
    prefix_keys: Any = None
    extra_info: Any = None


class PoolHitPolicy(str, enum.Enum):
    ALL_PAGES = 'all_pages'
    TRAILING_PAGES = 'trailing_pages'
    BLOCK_GROUPS = 'block_groups'


@dataclass
class PoolTransfer:
    name: Any
    host_indices: Any = None
    device_indices: Any = None
    keys: Any = None
    hit_policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES
    nodes_to_load: Any = None
    indices_from_pool: Any = None
    block_pages: int = 0
    group_pages: int = 0


@dataclass
class PoolTransferResult:
    kv_hit_pages: int
    extra_pool_hit_pages: dict
    restorable_prefix_pages: Any = None


class HiCacheStorage(ABC):
    def register_mem_pool_host(self, mem_pool_host): ...

    def register_mem_host_pool_v2(self, host_pool, host_pool_name): ...

    def on_host_pools_registered(self): ...

    def batch_exists_v2(self, keys, pool_transfers=None, extra_info=None): ...

    def batch_get_v2(self, transfers, extra_info=None): ...

    def batch_set_v2(self, transfers, extra_info=None): ...

    def batch_get_v1(self, keys, host_indices, extra_info=None): ...

    def batch_set_v1(self, keys, host_indices, extra_info=None): ...

    @abstractmethod
    def get(self, key, target_location=None, target_sizes=None): ...

    @abstractmethod
    def batch_get(self, keys, target_locations=None, target_sizes=None): ...

    @abstractmethod
    def set(self, key, value=None, target_location=None, target_sizes=None): ...

    @abstractmethod
    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None): ...

    @abstractmethod
    def exists(self, key): ...

    def batch_exists(self, keys, extra_info=None): ...

    def clear(self): ...

    def get_stats(self): ...
