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
        if len(pieces) == 1:
            (here, there, size), = pieces
            local, offset = memory[here:here + size], base + there
            call = peer.write if write else peer.read
            return lambda: call(local, offset)
        if kind == 'unregistered':
            return self._batch_of(write, memory, base, pieces)
        prepared = self.engine.prepare()  # as NIXL's lists are
        self._add(prepared, write, memory, base, pieces)
        return prepared.run

    def _add(self, to, write, memory, base, pieces):
        add = to.write_many if write else to.read_many
        add(memory, self.peer, [p[0] for p in pieces], [base + p[1] for p in pieces], [p[2] for p in pieces])

    def _batch_of(self, write, memory, base, pieces):
        """A batch that is made for each call."""
        def batch():
            with self.engine.batch() as made:
                self._add(made, write, memory, base, pieces)
                made.wait()
        return batch
