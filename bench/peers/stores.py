"""The store beside Mooncake's: puts, gets and exists, single and in batches, by one client and by
several, hot and cold; and blocks of a paged KV cache."""
import itertools
import socket
import time

from environments import mc_side, mooncake_master, mooncake_side
from side import Failed
from transfers import KIB, MIB, size_text
from turns import Case

POOL = 1 << 30
TURN_BYTES = 64 * MIB  # of values in a turn, at most
CLIENTS = 16
TTL = 600  # seconds until a process that stands still is taken for dead
LAYERS = 32


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def until_listening(port, seconds=20):
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(('127.0.0.1', port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise Failed(f'nothing listens on port {port}') from None
            time.sleep(0.05)


def rate_of(took, quantile):
    """Calls a second, by a quantile of the seconds that each took."""
    return 1 / sorted(took)[int(quantile * (len(took) - 1))]


class Store:
    """The servers of a side and its clients, which start when a case wants them."""

    def __init__(self, found, transport, quantile):
        self.quantile = quantile
        self.found, self.side, self.transport = found, found.side, transport
        self.clients, self.number = [], itertools.count()
        self.master = getattr(self, '_' + found.module)()

    def _mc(self):
        import mc.cluster
        cluster = mc.cluster.Cluster(nodes=0, client_ttl=f'{TTL}s')
        self.side.adopt(cluster.pid('master'), cluster.close)
        words = ['--transports', 'tcp'] if self.transport == 'tcp' else []
        cluster.start_node('s0', str(POOL), *words)
        self.side.adopt(cluster.pid('s0'))
        return cluster.master

    def _mooncake(self):
        port = free_port()
        self.side.server(mooncake_master(), f'--rpc_port={port}', f'--metrics_port={free_port()}',
                         f'--client_ttl={TTL}', f'--default_kv_lease_ttl={TTL * 1000}')
        until_listening(port)
        node = self.side.worker(self.found.python, 'store_mooncake', self.found.environment)
        node.call('node', master=f'127.0.0.1:{port}', size=POOL)
        return f'127.0.0.1:{port}'

    def some(self, count):
        """The first so many clients."""
        while len(self.clients) < count:
            client = self.side.worker(self.found.python, 'store_' + self.found.module, self.found.environment)
            client.call('start', master=self.master, transport=self.transport)
            self.clients.append(client)
        return self.clients[:count]

    def prefix(self):
        return f'b{next(self.number):05}/'

    def all(self, clients, method, **arguments):
        """The same of every client at the same time, with prefixes of their own: calls a second, of one
        client that of a quantile of its calls, of several all that they did."""
        prefixes = arguments.pop('prefixes')
        for client, prefix in zip(clients, prefixes):
            client.send(method, prefix=prefix, **arguments)
        answers = []
        failed = None
        for client in clients:  # each is read, whatever the others say
            try:
                answers.append(client.take())
            except Failed as e:
                failed = e
        if failed is not None:
            raise failed
        if len(answers) == 1:
            return rate_of(answers[0], self.quantile)
        return sum(len(took) / sum(took) for took in answers)


class Shape:
    """Of a case: `op` put, get, exists; value size, keys a call, clients, whether gets are hot."""

    def __init__(self, op, size, batch=1, clients=1, hot=False):
        self.op, self.size, self.batch, self.clients, self.hot = op, size, batch, clients, hot

    def __str__(self):
        words = [self.op, '' if self.op == 'exists' else size_text(self.size),
                 '' if self.op != 'get' else 'hot' if self.hot else 'cold',
                 f'{self.batch} a call' if self.batch > 1 else '',
                 f'{self.clients} clients' if self.clients > 1 else '']
        return ' '.join(word for word in words if word)

    def count(self):
        """Values of each client in a turn."""
        most = TURN_BYTES // self.size // self.clients
        if self.op == 'exists' or self.hot:
            return max(self.batch, 8)
        return max(self.batch, min(most, 2048 if self.batch == 1 else 16384) // self.batch * self.batch)


def measure(store, shape, seconds):
    """Keys a second of all clients. Cold gets read what another process has put."""
    count, clients = shape.count(), store.some(shape.clients)
    prefixes = [store.prefix() for _ in clients]
    if shape.op == 'put':
        rate = store.all(clients, 'put', prefixes=prefixes, count=count, size=shape.size,
                         batch=shape.batch, seconds=seconds)
        # What one client has put, another reads: its bytes are looked at.
        store.some(2)[1].call('get', prefix=prefixes[0], count=shape.batch, size=shape.size,
                              batch=shape.batch, seconds=60, hot=False)
    else:
        writer = store.some(shape.clients + 1)[-1]
        for prefix in prefixes:
            writer.call('put', prefix=prefix, count=count, size=shape.size,
                        batch=max(shape.batch, min(64, TURN_BYTES // shape.size)), seconds=60)
        more = {'count': count, 'batch': shape.batch, 'seconds': seconds}
        if shape.op == 'get':
            more.update(size=shape.size, hot=shape.hot)
        rate = store.all(clients, shape.op, prefixes=prefixes, **more)
    for prefix in prefixes:
        clients[0].call('remove', prefix=prefix)
    return rate * shape.batch


def shapes(quick):
    """The grid."""
    sizes = (4 * KIB, MIB) if quick else (4 * KIB, 64 * KIB, MIB, 16 * MIB)
    for size in sizes:
        yield Shape('put', size)
        yield Shape('get', size, hot=True)
        yield Shape('get', size)
    for batch in (64,) if quick else (64, 512):
        yield Shape('put', 4 * KIB, batch)
        yield Shape('get', 4 * KIB, batch, hot=True)
        yield Shape('get', 4 * KIB, batch)
    for batch in (1, 512) if quick else (1, 64, 512):
        yield Shape('exists', 4 * KIB, batch)
    for clients in (4,) if quick else (4, 16):
        for size in (4 * KIB,) if quick else (4 * KIB, MIB):
            yield Shape('put', size, clients=clients)
            yield Shape('get', size, clients=clients, hot=True)
            if not quick:
                yield Shape('get', size, clients=clients)
        yield Shape('exists', 4 * KIB, clients=clients)


def blocks(store, write, row):
    """Blocks a second through all layers, 16 a call."""
    count, batch = 64, 16
    writer, reader = store.some(2)
    for client in (writer, reader):
        if getattr(client, 'kv_row', None) != row:
            client.call('paged', layers=LAYERS, rows=count, row=row)
            client.kv_row = row
    prefix = store.prefix()
    made = writer.call('blocks', write=True, prefix=prefix, count=count, batch=batch, seconds=60)
    read = reader.call('blocks', write=False, prefix=prefix, count=count, batch=batch, seconds=60)
    writer.call('forget_blocks')
    return batch * rate_of(made if write else read, store.quantile)


def bench(run):
    """Over tcp alone, then over what each chooses."""
    for transport in ('tcp', 'default'):
        found = [side for side in (mc_side(run, transport), mooncake_side(run, transport)) if side]
        if len(found) < 2:
            return
        try:
            stores = {f.side: Store(f, transport, run.quantile) for f in found}
            ours, *others = stores
            for side in stores:
                side.pause()
            for shape in shapes(run.quick):
                case = Case(f'{transport} store {shape}', '/s', False, run.targets(transport))
                run.compare(case, ours, others, lambda side: measure(stores[side], shape, run.seconds))
            for row in (16 * KIB,) if run.quick else (4 * KIB, 16 * KIB, 64 * KIB):
                for write in (True, False):
                    name = f"{transport} store {'put' if write else 'get'} blocks of {LAYERS} x {size_text(row)}"
                    run.compare(Case(name, '/s', False, run.targets(transport)), ours, others,
                                lambda side: blocks(stores[side], write, row))
        finally:
            for f in found:
                f.side.close()
