"""Packages with the names of others, over mc."""
