"""LMCache's local CPU backend, by its own classes. It keeps chunks in the memory of its process; a put
copies an application's bytes into a chunk, and a get copies them out again, as LMCache's connectors do
for an engine's KV memory."""
import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from store_worker import StoreWorker

import area

LAYERS, TOKENS = 4, 256
TYPE = torch.bfloat16


class Peer(StoreWorker):
    """The cache of one engine's process."""

    def connect(self, gigabytes):
        torch.set_num_threads(1)
        config = LMCacheEngineConfig.from_defaults(chunk_size=TOKENS, local_cpu=True,
                                                   max_local_cpu_size=gigabytes)
        metadata = LMCacheMetadata('bench', 1, 1, 0, 0, TYPE, (LAYERS, 2, TOKENS, 2, 128), chunk_size=TOKENS)
        self.backend = LocalCPUBackend(config, metadata, 'cpu')
        self.numbers, self.pages = {}, []

    def allocate(self, size):
        self.pages.append(area.Area(size))
        return self.pages[-1].address

    def _key(self, key):
        number = self.numbers.setdefault(key, len(self.numbers))
        return CacheEngineKey('bench', 1, 0, number, TYPE)

    @staticmethod
    def _shape(size):
        return torch.Size([2, LAYERS, TOKENS, size // (2 * LAYERS * TOKENS * 2)])

    def _tensors(self, addresses, size):
        for at in addresses:
            pages = next(p for p in self.pages if p.address <= at < p.address + p.size)
            begin = at - pages.address
            yield torch.frombuffer(pages.view[begin:begin + size], dtype=TYPE).view(self._shape(size))

    def ready_puts(self, keys, addresses, size):
        items = list(zip(map(self._key, keys), self._tensors(addresses, size)))
        backend, shape = self.backend, self._shape(size)

        def put():
            for key, tensor in items:
                chunk = backend.allocate([shape], [TYPE], MemoryFormat.KV_2LTD)
                chunk.get_tensor(0).copy_(tensor)
                backend.submit_put_task(key, chunk)
                chunk.ref_count_down()
        return put

    def ready_gets(self, keys, addresses, size):
        items = list(zip(map(self._key, keys), self._tensors(addresses, size)))
        backend = self.backend

        def get():
            for key, tensor in items:
                chunk = backend.get_blocking(key)
                tensor.copy_(chunk.get_tensor(0))
                chunk.ref_count_down()
        return get

    def ready_exists(self, keys):
        wanted, backend = [self._key(key) for key in keys], self.backend

        def contains():
            if not all(backend.contains(key) for key in wanted):
                raise RuntimeError('keys are not there')
        return contains

    def forget(self, prefix):
        for key in [key for key in self.numbers if key.startswith(prefix)]:
            self.backend.remove(self._key(key))
            del self.numbers[key]
