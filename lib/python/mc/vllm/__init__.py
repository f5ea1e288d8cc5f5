"""vLLM's KV cache in mc's pool, by `"kv_connector": "McConnector"` of the module path mc.vllm.

docs/engines.md says how to start it. What needs no vLLM (layout, keys, scheduler, worker) imports
without it.
"""
from __future__ import annotations

from typing import Any

__all__ = ['McConnector']


def __getattr__(name: str) -> Any:
    if name == 'McConnector':
        from mc.vllm.connector import McConnector

        return McConnector
    raise AttributeError(f"module 'mc.vllm' has no attribute {name!r}")
