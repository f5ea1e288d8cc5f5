"""Stands in for LMCache in the gate: the names that mc.lmcache.remote uses."""
