"""As mooncake.engine, over mc."""
from __future__ import annotations

from mc.compat.mooncake.engine import (SUPPORT_CUDA, SUPPORT_EFA, SUPPORT_HIP, SUPPORT_INTRA_NVLINK,
                                       SUPPORT_MNNVL, SUPPORT_MUSA, CoroRPCInterface, Read,
                                       RpcInterface, SharedSegment, TransferEngine, TransferNotify,
                                       TransferOpcode, Write, create_rpc_client, create_rpc_server)

__all__ = ['SUPPORT_CUDA', 'SUPPORT_EFA', 'SUPPORT_HIP', 'SUPPORT_INTRA_NVLINK', 'SUPPORT_MNNVL',
           'SUPPORT_MUSA', 'CoroRPCInterface', 'Read', 'RpcInterface', 'SharedSegment',
           'TransferEngine', 'TransferNotify', 'TransferOpcode', 'Write', 'create_rpc_client',
           'create_rpc_server']
