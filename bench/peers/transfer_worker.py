"""What the workers of all engines share: memory of three kinds, timed transfers, and their bytes.

A piece is (offset in local memory, offset in the peer's memory, bytes). An engine's own class gives
`open`, `own`, `register`, `offer`, `connect` and `step`.
"""
import time

import area

LEAST, MORE_SECONDS = 10, 0.5  # stretches of a turn, for which it may take longer
STRETCH_SECONDS = 0.0005  # at least a call; the clock is read in between


class TransferWorker:
    """A target that offers memory, or an initiator that reads and writes it."""

    def __init__(self):
        self.local = {}  # kind: address
        self.offered = {}  # kind: address

    def start(self, transport):
        """Opens the engine: 'tcp' alone, or what it chooses."""
        self.open(transport)

    def target(self, size, seed):
        """Offers memory of both kinds with a seed's bytes, and says how to reach it."""
        self.offered = {'engine': self.own(size), 'registered': self.register(size)}
        for address in self.offered.values():
            area.fill(address, size, seed)
        return self.offer()

    def initiator(self, size, peer):
        """Has memory of each kind and knows a target."""
        self.plain = area.Area(size)
        self.local = {'engine': self.own(size), 'registered': self.register(size),
                      'unregistered': self.plain.address}
        self.connect(peer)

    def filled(self, kind, size, seed):
        """Local memory for a write."""
        area.fill(self.local[kind], size, seed)

    def cleared(self, kind, size):
        """Local memory for a read."""
        area.zero(self.local[kind], size)

    def got(self, kind, pieces, seed):
        """Whether a read brought the target's bytes."""
        return all(area.holds(self.local[kind] + here, size, seed, there)
                   for here, there, size in pieces)

    def has(self, kind, pieces, seed):
        """Whether a write left the initiator's bytes in the target's memory."""
        return all(area.holds(self.offered[kind] + there, size, seed, here)
                   for here, there, size in pieces)

    def again(self, kind, size, seed):
        """The target's bytes after writes."""
        area.fill(self.offered[kind], size, seed)

    def run(self, write, kind, remote, pieces, seconds, quantile):
        """Seconds that one call with all pieces takes: a quantile of those of short stretches, over about
        so many seconds."""
        step = self.step(write, kind, remote, pieces)
        start = time.perf_counter()
        step()
        stretch = max(1, int(STRETCH_SECONDS / max(time.perf_counter() - start, 1e-7)))
        took, begin = [], time.perf_counter()
        end = begin + seconds
        while begin < end or len(took) < LEAST and begin < end + MORE_SECONDS:
            for _ in range(stretch):
                step()
            now = time.perf_counter()
            took.append((now - begin) / stretch)
            begin = now
        return sorted(took)[int(quantile * (len(took) - 1))]
