"""SGLang's storage interface, of its wheel alone: its engine is not installed, what storage imports is stood in for.

    build/engines/lmcache-0.5.6/bin/python tests/python/sglang_record.py FOLDER tests/python/fixtures/sglang-0.5.23.json

FOLDER has the unpacked wheel; the Python has torch. Writes names, parameters and abstractness as JSON;
test_sglang.py compares the stand-in and McHiCache with what it wrote.
"""
import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from unittest import mock

from vllm_record import record

STORAGE = 'sglang.srt.mem_cache.hicache_storage'
POOLS = 'sglang.srt.mem_cache.pool_host'
_REAL = (STORAGE, 'sglang.srt.environ', 'sglang.srt.mem_cache.storage', 'sglang.srt.mem_cache.storage.backend_factory',
         POOLS + '.base', POOLS + '.common', POOLS + '.mha', POOLS + '.mla', POOLS + '.hisparse', POOLS + '.page_unified',
         'sglang.srt.observability.metrics_collector', 'sglang.srt.mem_cache.storage.file',
         'sglang.srt.mem_cache.storage.file.lru_file_evictor')
_EMPTY = ('sglang', 'sglang.srt', 'sglang.srt.mem_cache', POOLS, 'sglang.srt.observability')


class _Anything(types.ModuleType):
    """A module that has every name: classes, which may be derived from, and functions."""

    def __getattr__(self, name):
        if name.startswith('__'):
            raise AttributeError(name)
        if name.startswith('is_'):
            value = lambda *_, **__: False  # noqa: E731
        elif name[0].isupper():
            value = type(name, (), {})
        else:
            value = mock.MagicMock(name=name)
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] not in ('sglang', 'sgl_kernel', 'triton') or name in _REAL:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Anything(spec.name)

    def exec_module(self, module):
        pass


def real(folder):
    """Makes the wheel's storage modules importable, without its engine."""
    for name in _EMPTY:
        module = types.ModuleType(name)
        module.__path__ = [os.path.join(folder, *name.split('.'))]
        sys.modules[name] = module
    sys.meta_path.insert(0, _Finder())
    return importlib.import_module(STORAGE)


def interface(storage):
    """Of the storage module: the real one or the stand-in."""
    out = record(storage, ['HiCacheStorage'])
    for name in ('HiCacheStorageConfig', 'HiCacheStorageExtraInfo', 'PoolTransfer', 'PoolTransferResult'):
        out[name] = [field.name for field in dataclasses.fields(getattr(storage, name))]
    out['PoolHitPolicy'] = {each.name: each.value for each in storage.PoolHitPolicy}
    return out


if __name__ == '__main__':
    with open(sys.argv[2], 'w') as file:
        file.write(json.dumps(interface(real(sys.argv[1])), indent=1, sort_keys=True) + '\n')
