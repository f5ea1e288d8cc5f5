"""LoRA adapters: the scope that sets the blocks of each apart by its weights.

vLLM hashes an adapter's name (0.32: its path too), and its workers know it by a number. Both may
come to stand for other weights: an adapter is loaded in place, unloaded and loaded again, or its
files are written over. vLLM's own cache may then have blocks of the old weights under the hashes of
the new ones. The adapter is not shared from then on: under this name until vLLM's cache is reset,
under this number for ever.
Thread: the engine core's.
"""
from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from mc.vllm import keys

_CONFIG = 'adapter_config.json'
_DOUBT = ('', '', ())

Files = tuple[tuple[str, int, int], ...]


class Adapters:
    """`doubt(adapter, why)` is called when an adapter is not shared, or not any longer."""

    def __init__(self, doubt: Callable[[Any, str], None]) -> None:
        self._doubt = doubt
        self._names: dict[str, tuple[str, str, Files]] = {}
        self._numbers: dict[int, tuple[str, str, Files]] = {}
        self._scopes: dict[tuple[str, str, Files], str] = {}

    def scope(self, adapter: Any) -> str:
        """"": its blocks are not shared."""
        name, number, path = adapter.lora_name, adapter.lora_int_id, _path(adapter)
        files = _files(path)
        said = (name, path, files)
        # Workers read such an adapter's files again at every step.
        inplace = getattr(adapter, 'load_inplace', False)
        known = (self._names.setdefault(name, said), self._numbers.setdefault(number, said))
        if _DOUBT in known:
            return ''
        if inplace or known != (said, said):
            self._names[name] = self._numbers[number] = _DOUBT
            self._doubt(adapter, 'it is loaded in place' if inplace
                        else 'it had other files before')
            return ''
        if said not in self._scopes:
            self._scopes[said] = adapter_scope(adapter)
            if not self._scopes[said]:
                self._doubt(adapter, 'its files cannot be read')
        return self._scopes[said]

    def reset(self) -> None:
        """vLLM's own cache was reset."""
        self._names.clear()


def _path(adapter: Any) -> str:
    return getattr(adapter, 'lora_path', '') or getattr(adapter, 'lora_local_path', '')


def _files(folder: str) -> Files:
    """Name, time and size of each file that the weights depend on."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.stat()) for entry in entries
                     if entry.name.endswith(keys.WEIGHTS) or entry.name == _CONFIG]
    except OSError:
        return ()
    return tuple(sorted((name, said.st_mtime_ns, said.st_size) for name, said in found))


def adapter_scope(adapter: Any) -> str:
    """Digests an adapter's name, weights and configuration. "" when its files cannot be read."""
    path = _path(adapter)
    try:
        weights = keys.digest_of_folder(path)
    except OSError:
        return ''
    if not weights:
        return ''
    try:
        with open(os.path.join(path, _CONFIG), encoding='utf-8') as file:
            config = file.read()
    except OSError:
        config = ''
    return keys.digest([adapter.lora_name, weights, config])
