"""The store on one machine beside LMCache's local CPU backend, which is memory of the caller's process:
one client puts, gets, and asks for chunks of a KV cache."""
from environments import lmcache_side, mc_side
from stores import Store, rate_of
from transfers import KIB, MIB, size_text
from turns import Case

GIGABYTES = 1.0
TURN_BYTES = 256 * MIB


class LocalCache:
    """As `Store`, of a single process."""

    def __init__(self, found, quantile):
        self.quantile = quantile
        self.client = found.side.worker(found.python, 'store_lmcache', found.environment)
        self.client.call('start', gigabytes=GIGABYTES)
        self.made = 0

    def some(self, count):
        return [self.client][:count]

    def prefix(self):
        self.made += 1
        return f'b{self.made:05}/'


def measure(store, op, size, batch, seconds):
    """Chunks a second of one client, which has put them itself."""
    (client,) = store.some(1)
    prefix, count = store.prefix(), max(batch, min(64, TURN_BYTES // size) // batch * batch)
    put = client.call('put', prefix=prefix, count=count, size=size, batch=batch, seconds=60)
    got = client.call('get', prefix=prefix, count=count, size=size, batch=batch, seconds=60, hot=False)
    asked = client.call('exists', prefix=prefix, count=count, batch=batch, seconds=seconds)
    client.call('remove', prefix=prefix)
    return batch * rate_of({'put': put, 'get': got, 'exists': asked}[op], store.quantile)


def bench(run):
    theirs = lmcache_side(run)
    if theirs is None:
        return
    ours = mc_side(run, 'default')
    try:
        stores = {ours.side: Store(ours, 'default', run.quantile), theirs.side: LocalCache(theirs, run.quantile)}
        for side in stores:
            side.pause()
        for op in ('put', 'get', 'exists'):
            for size in (MIB,) if run.quick or op == 'exists' else (64 * KIB, MIB, 4 * MIB):
                for batch in (1, 16):
                    words = [op, '' if op == 'exists' else f'chunks of {size_text(size)}',
                             f'{batch} a call' if batch > 1 else '']
                    case = Case('local CPU ' + ' '.join(word for word in words if word), '/s', False)
                    run.compare(case, ours.side, [theirs.side],
                                lambda side: measure(stores[side], op, size, batch, run.seconds))
    finally:
        ours.side.close()
        theirs.side.close()
