"""Stands in for vLLM in the gate: the names that mc.vllm.connector uses, and no behaviour."""

__version__ = '0.32.0'
