"""Stands in for SGLang in the gate: the names that mc.sglang uses."""
