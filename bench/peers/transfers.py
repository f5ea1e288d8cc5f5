"""Transfers beside Mooncake's engine and NIXL: sizes, directions, depths, kinds of memory, and the
rows of a KV cache's layers."""
import random

from environments import mc_side, mooncake_side, nixl_side
from side import Failed
from turns import Case

KIB, MIB = 1 << 10, 1 << 20
LARGEST = 256 * MIB
SEED = 1  # of what targets offer
# Kind: local memory, the target's memory.
KINDS = {'engine': ('engine', 'engine'), 'registered': ('registered', 'engine'),
         'unregistered': ('unregistered', 'engine'), 'application': ('registered', 'registered')}
LAYERS, BLOCKS = 32, 8


def size_text(size):
    return f'{size // MIB} MiB' if size >= MIB else f'{size // KIB} KiB'


def contiguous(size, depth):
    return [(n * size, n * size, size) for n in range(depth)]


def scattered(row):
    """Blocks of all layers, each row in a place of its own; the target has them in another order."""
    order = list(range(LAYERS * BLOCKS))
    random.Random(7).shuffle(order)
    return [(2 * n * row, 2 * at * row, row) for n, at in enumerate(order)]


class Pair:
    """The two workers of a side: one offers, the other moves."""

    def __init__(self, side, python, module, environment, transport, size):
        self.side, self.seed = side, SEED
        self.target = side.worker(python, module, environment)
        self.initiator = side.worker(python, module, environment)
        for worker in (self.target, self.initiator):
            worker.call('start', transport=transport)
        peer = self.target.call('target', size=size, seed=SEED)
        self.initiator.call('initiator', size=size, peer=peer)

    def measure(self, write, kind, pieces, seconds, quantile):
        """Seconds of a call; its bytes are looked at."""
        local, remote = KINDS[kind]
        end = max(max(p[0], p[1]) + p[2] for p in pieces)
        if write:
            self.seed += 1
            self.initiator.call('filled', kind=local, size=end, seed=self.seed)
        else:
            self.initiator.call('cleared', kind=local, size=end)
        took = self.initiator.call('run', write=write, kind=local, remote=remote, pieces=pieces,
                                   seconds=seconds, quantile=quantile)
        if write:
            whole = self.target.call('has', kind=remote, pieces=pieces, seed=self.seed)
            self.target.call('again', kind=remote, size=end, seed=SEED)
        else:
            whole = self.initiator.call('got', kind=local, pieces=pieces, seed=SEED)
        if not whole:
            raise Failed('other bytes than were sent')
        return took


def cases(quick):
    """(what, write, kind, pieces): the whole grid, or what shows the most of it."""
    sizes = (4 * KIB, MIB, 64 * MIB) if quick else (4 * KIB, 64 * KIB, MIB, 16 * MIB, LARGEST)
    kinds = ('engine', 'unregistered') if quick else KINDS
    for kind in kinds:
        for write in (False, True):
            for size in sizes:
                for depth in (1, 16):
                    few = depth == 1 or (size < 16 * MIB and (not quick or (size == 4 * KIB)))
                    if size * depth <= LARGEST and few and not (quick and write and kind != 'engine'):
                        yield f'{size_text(size)} x{depth}', write, kind, contiguous(size, depth)
    for write in (False,) if quick else (False, True):
        for row in (16 * KIB,) if quick else (4 * KIB, 16 * KIB, 64 * KIB):
            name = f'{LAYERS} layers x {BLOCKS} blocks of {size_text(row)}'
            yield name, write, 'registered', scattered(row)


def value(pieces, seconds):
    """The value of a case and its unit: a time where it is a small one, else a rate."""
    total = sum(p[2] for p in pieces)
    if total < MIB:
        return seconds * 1e6
    return total / 1e9 / seconds


def bench(run):
    """Over tcp alone, then over what each chooses."""
    size = 64 * MIB if run.quick else LARGEST
    for transport in ('tcp', 'default'):
        sides = [make(run, transport) for make in (mc_side, mooncake_side, nixl_side)]
        sides = [side for side in sides if side is not None]
        try:
            pairs = {s.side: Pair(s.side, s.python, 'transfer_' + s.module, s.environment, transport, size)
                     for s in sides}
            ours, *others = pairs
            for side in pairs:
                side.pause()
            for what, write, kind, pieces in cases(run.quick):
                name = f"{transport} {'write' if write else 'read'} {what}, {kind}"
                small = sum(p[2] for p in pieces) < MIB
                case = Case(name, 'us' if small else 'GB/s', small, run.targets(transport))
                run.compare(case, ours, others, lambda side: value(pieces, pairs[side].measure(
                    write, kind, pieces, run.seconds, run.quantile)))
        finally:
            for s in sides:
                s.side.close()
