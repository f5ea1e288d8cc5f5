"""A client of mc's store, by its Python package."""
import mc
from store_worker import StoreWorker


class Peer(StoreWorker):
    """One client."""

    def connect(self, master, transport):
        self.store = mc.Store(master, transports='tcp' if transport == 'tcp' else None)
        self.memory = []

    def allocate(self, size):
        self.memory.append(self.store.allocate(size))
        return self.memory[-1].address

    def _parts(self, addresses, size):
        for at in addresses:
            memory = next(m for m in self.memory if m.address <= at < m.address + m.nbytes)
            yield memory[at - memory.address:at - memory.address + size]

    def ready_puts(self, keys, addresses, size):
        values = list(self._parts(addresses, size))
        if len(keys) == 1:
            (key,), (value,), put = keys, values, self.store.put
            return lambda: put(key, value)
        items, put_many = dict(zip(keys, values)), self.store.put_many
        return lambda: whole(put_many(items))

    def ready_gets(self, keys, addresses, size):
        places = list(self._parts(addresses, size))
        if len(keys) == 1:
            (key,), (place,), get = keys, places, self.store.get_into
            return lambda: get(key, place)
        items, get_many = dict(zip(keys, places)), self.store.get_many_into
        return lambda: whole(get_many(items))

    def ready_exists(self, keys):
        if len(keys) == 1:
            (key,), exists = keys, self.store.exists

            def one():
                if not exists(key):
                    raise RuntimeError(f'{key} is not there')
            return one
        many = self.store.exists_many

        def several():
            if not all(many(keys)):
                raise RuntimeError('keys are not there')
        return several

    def forget(self, prefix):
        self.store.remove_prefix(prefix, force=True)

    def layout(self, layers, rows, row):
        """Memory of a paged KV cache: `rows` blocks in each layer."""
        each = rows * row
        cache = self.store.allocate(layers * each)
        self.cache = cache
        self.kv = self.store.layout([mc.Region(cache, row, offset=n * each) for n in range(layers)], rows)
        return cache.address

    def ready_blocks(self, write, keys, blocks, layers, rows, row):
        del layers, rows, row
        hashes = b''.join(key.encode().ljust(32, b'.')[:32] for key in keys)
        call = self.store.put_blocks if write else self.store.get_blocks

        def several():
            failed = call(self.kv, 'kv@', hashes, blocks).failed()
            if failed:
                raise RuntimeError(f'blocks failed: {failed[:3]}')
        return several

    def forget_blocks(self):
        self.store.remove_prefix('kv@', force=True)


def whole(results):
    """Raises where an item of a call failed."""
    for key, result in results.items():
        if result.code != 0:
            raise RuntimeError(f'{key}: {result.code!r}')
