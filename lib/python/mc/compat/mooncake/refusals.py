"""Methods that mc has no counterpart for: each says so, and what to use."""
from __future__ import annotations

import ctypes
from typing import Any

_INSTEAD = {
    'put_tensor_with_tp': 'put_tensor with a key for each rank',
    'get_tensor_with_tp': 'get_tensor with a key for each rank',
    'save_tensor_to_safetensor': 'get_tensor, and safetensors',
    'load_tensor_from_safetensor': 'safetensors, and put_tensor',
    'mount_segment': 'setup with global_segment_size, or mc-store serve',
    'allocate_and_mount_segment': 'setup with global_segment_size, or mc-store serve',
    'unmount_segment': 'close, or mc-store drain',
    'unmount_and_free_segment': 'close, or mc-store drain',
    'unmount_local_disk_segment': 'mc-store drain',
    'alloc_from_mem_pool': 'MooncakeHostMemAllocator',
    'init_all': 'setup',
    'batch_replica_clear': 'remove',
    'create_copy_task': 'ReplicateConfig.replica_num, or mc-store',
    'create_move_task': 'mc-store drain',
    'query_task': 'mc-store',
    'get_offload_rpc_read_count': 'the metrics of mc-store serve',
}
_ENDINGS = ('_with_tp', '_with_tp_into', '_with_tp_from', '_with_parallelism',
            '_with_parallelism_into', '_with_parallelism_from', '_cuda')


class Refusals:
    """`NotImplementedError` that names the method, for what mc does not have."""

    def __getattr__(self, name: str) -> Any:
        instead = _INSTEAD.get(name)
        if instead is None:
            if not name.endswith(_ENDINGS):
                raise AttributeError(f'{type(self).__name__} has no {name}')
            instead = 'put_tensor and get_tensor with a key for each part'

        def refuse(*_: Any, **__: Any) -> Any:
            raise NotImplementedError(f'{name} is not in mc: use {instead}')
        return refuse


def bind_to_numa_node(node: int) -> None:
    """Keeps the calling thread, and memory that it touches first, on a NUMA node."""
    try:
        numa = ctypes.CDLL('libnuma.so.1')
    except OSError:
        raise NotImplementedError('bind_to_numa_node needs libnuma.so.1 (libnuma1)') from None
    if numa.numa_available() < 0 or node > numa.numa_max_node() or node < 0:
        raise ValueError(f'this machine has no NUMA node {node}')
    numa.numa_run_on_node(node)
    numa.numa_set_preferred(node)
