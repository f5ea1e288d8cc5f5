"""A client of Mooncake's store, by its own Python package, and the segment that is its pool."""
import re

from mooncake.store import MooncakeDistributedStore
from store_worker import StoreWorker

import area


class Peer(StoreWorker):
    """One client, or a process that only gives memory to the pool."""

    def _setup(self, master, segment):
        self.store, self.pages, self.rows = MooncakeDistributedStore(), [], []
        code = self.store.setup('127.0.0.1', 'P2PHANDSHAKE', segment, 64 << 20, 'tcp', '', master)
        if code != 0:
            raise RuntimeError(f'setup failed with {code}')

    def node(self, master, size):
        """Gives memory to the pool."""
        self._setup(master, size)

    def connect(self, master, transport):
        del transport
        self._setup(master, 0)

    def allocate(self, size):
        pages = area.Area(size)
        self.pages.append(pages)
        if self.store.register_buffer(pages.address, size) != 0:
            raise RuntimeError(f'{size} bytes are not registered')
        return pages.address

    def ready_puts(self, keys, addresses, size):
        if len(keys) == 1:
            call, words = self.store.put_from, (keys[0], addresses[0], size)
            return lambda: good([call(*words)], 0)
        call, words = self.store.batch_put_from, (keys, addresses, [size] * len(keys))
        return lambda: good(call(*words), 0)

    def ready_gets(self, keys, addresses, size):
        if len(keys) == 1:
            call, words = self.store.get_into, (keys[0], addresses[0], size)
            return lambda: good([call(*words)], size)
        call, words = self.store.batch_get_into, (keys, addresses, [size] * len(keys))
        return lambda: good(call(*words), size)

    def ready_exists(self, keys):
        if len(keys) == 1:
            one, key = self.store.is_exist, keys[0]
            return lambda: good([one(key)], 1)
        several = self.store.batch_is_exist
        return lambda: good(several(keys), 1)

    def forget(self, prefix):
        self.store.remove_by_regex('^' + re.escape(prefix), True)

    def layout(self, layers, rows, row):
        """Memory of a paged KV cache: `rows` blocks in each layer."""
        return self.allocate(layers * rows * row)

    def ready_blocks(self, write, keys, blocks, layers, rows, row):
        base, each = self.pages[-1].address, rows * row
        places = [[base + layer * each + block * row for layer in range(layers)] for block in blocks]
        sizes = [[row] * layers for _ in blocks]
        call = self.store.batch_put_from_multi_buffers if write else self.store.batch_get_into_multi_buffers
        wanted = 0 if write else layers * row
        keys = ['kv@' + key for key in keys]
        return lambda: good(call(keys, places, sizes), wanted)

    def forget_blocks(self):
        self.store.remove_by_regex('^kv@', True)


def good(answers, wanted):
    """Raises where an item of a call failed."""
    if any(answer != wanted for answer in answers):
        raise RuntimeError(f'an item failed with {next(a for a in answers if a != wanted)}')
