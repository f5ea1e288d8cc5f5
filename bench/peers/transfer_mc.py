"""mc's transfer engine, by its Python package."""
import mc
from transfer_worker import TransferWorker

import area


class Peer(TransferWorker):
    """One engine of mc."""

    def open(self, transport):
        self.engine = mc.Engine('bench', transports='tcp' if transport == 'tcp' else None)
        self.memory = {}  # address: what a transfer names

    def own(self, size):
        return self._kept(self.engine.allocate(size))

    def register(self, size):
        pages = area.Area(size)
        return self._kept(self.engine.register(pages.view))

    def _kept(self, memory):
        self.memory[memory.address] = memory
        return memory.address

    def offer(self):
        return {'address': self.engine.address,
                'base': {kind: self.memory[at].offset for kind, at in self.offered.items()}}

    def connect(self, peer):
        self.peer, self.base = self.engine.open(peer['address']), peer['base']
        self.memory[self.plain.address] = self.plain.view

    def step(self, write, kind, remote, pieces):
        memory, base, peer = self.memory[self.local[kind]], self.base[remote], self.peer
        wanted = [(memory[here:here + size], base + there) for here, there, size in pieces]
        if len(wanted) == 1:
            (local, offset), = wanted
            call = peer.write if write else peer.read
            return lambda: call(local, offset)
        engine = self.engine

        def batch():
            with engine.batch() as b:
                add = b.write if write else b.read
                for local, offset in wanted:
                    add(local, peer, offset)
                b.wait()
        return batch
