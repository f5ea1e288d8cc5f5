"""What the workers of all stores share: values in registered memory, timed calls, and their bytes.

Value n of a prefix is the bytes of slot n of the memory, so every value that was put can be compared.
A store's own class gives `connect`, `allocate`, `ready_puts`, `ready_gets`, `ready_exists` and
`forget`; what a `ready_...` returns is called without arguments, so that arguments are built before.
"""
import time

import area

MEMORY = 64 << 20
SEED = 3
LEAST, MORE_SECONDS = 10, 0.5  # calls of a turn, for which it may take longer


class StoreWorker:
    """A client of a store."""

    def start(self, **where):
        """Connects, and has memory for values that are put and for those that are got."""
        self.connect(**where)
        self.source, self.into = self.allocate(MEMORY), self.allocate(MEMORY)
        area.fill(self.source, MEMORY, SEED)

    @staticmethod
    def slots(numbers, size):
        """Where the values of these numbers are, from the start of the memory."""
        return [n % (MEMORY // size) * size for n in numbers]

    @staticmethod
    def batches(prefix, count, batch):
        """Keys and numbers, a call each."""
        for first in range(0, count, batch):
            numbers = range(first, min(first + batch, count))
            yield [f'{prefix}{n:06}' for n in numbers], numbers

    @staticmethod
    def timed(calls, seconds, again=False):
        """Runs calls for about so many seconds, from the first again where `again`: the seconds
        of each."""
        ends = [time.perf_counter()]
        deadline = ends[0] + seconds
        while len(ends) == 1 or again and ends[-1] < deadline:
            for call in calls:
                call()
                ends.append(time.perf_counter())
                if ends[-1] >= deadline and (len(ends) > LEAST or ends[-1] >= deadline + MORE_SECONDS):
                    break
            if not again:
                break
        return [b - a for a, b in zip(ends, ends[1:])]

    def put(self, prefix, count, size, batch, seconds):
        """What `timed` says."""
        calls = [self.ready_puts(keys, [self.source + at for at in self.slots(numbers, size)], size)
                 for keys, numbers in self.batches(prefix, count, batch)]
        return self.timed(calls, seconds)

    def get(self, prefix, count, size, batch, seconds, hot):
        """The same; `hot`: these values over and over, after they were read once."""
        calls = [self.ready_gets(keys, [self.into + at for at in self.slots(numbers, size)], size)
                 for keys, numbers in self.batches(prefix, count, batch)]
        used = min(MEMORY, count * size)
        area.zero(self.into, used)
        if hot:
            for call in calls:
                call()
        timed = self.timed(calls, seconds, again=hot)
        read = min(count, count if hot else len(timed) * batch)
        for at in self.slots(range(max(0, read - MEMORY // size), read), size):
            if not area.holds(self.into + at, size, SEED, at):
                raise RuntimeError(f'{prefix}: other bytes than were put')
        return timed

    def exists(self, prefix, count, batch, seconds):
        """The same for questions."""
        calls = [self.ready_exists(keys) for keys, _ in self.batches(prefix, count, batch)]
        return self.timed(calls, seconds, again=True)

    def remove(self, prefix):
        """Everything with that prefix."""
        self.forget(prefix)

    # ---- blocks of a paged KV cache: `layers` regions with `rows` blocks each

    def paged(self, layers, rows, row):
        """Memory for them, with a seed's bytes."""
        self.kv_shape, self.kv_size = (layers, rows, row), layers * rows * row
        self.kv_base = self.layout(layers, rows, row)
        area.fill(self.kv_base, self.kv_size, SEED)

    def blocks(self, write, prefix, count, batch, seconds):
        """Puts blocks that are spread over the memory, or gets them where they were."""
        layers, rows, row = self.kv_shape
        calls = [self.ready_blocks(write, keys, [n * 7 % rows for n in numbers], layers, rows, row)
                 for keys, numbers in self.batches(prefix, count, batch)]
        if not write:
            area.zero(self.kv_base, self.kv_size)
        timed = self.timed(calls, seconds)
        for n in () if write else range(len(timed) * batch):
            for layer in range(layers):
                at = (layer * rows + n * 7 % rows) * row
                if not area.holds(self.kv_base + at, row, SEED, at):
                    raise RuntimeError(f'{prefix}: other bytes than were put')
        if not write:
            area.fill(self.kv_base, self.kv_size, SEED)
        return timed
