"""Mooncake's transfer engine, by its own Python package. Its only transport here is tcp."""
from mooncake.engine import TransferEngine
from transfer_worker import TransferWorker

import area


class Peer(TransferWorker):
    """One engine of Mooncake."""

    def open(self, transport):
        del transport
        self.engine, self.pages = TransferEngine(), []
        if self.engine.initialize('127.0.0.1', 'P2PHANDSHAKE', 'tcp', '') != 0:
            raise RuntimeError('initialize failed')

    def own(self, size):
        address = self.engine.allocate_managed_buffer(size)
        if address <= 0:
            raise RuntimeError(f'no managed buffer of {size} bytes')
        return address

    def register(self, size):
        pages = area.Area(size)
        self.pages.append(pages)
        if self.engine.register_memory(pages.address, size) != 0:
            raise RuntimeError(f'{size} bytes are not registered')
        return pages.address

    def offer(self):
        return {'segment': f'127.0.0.1:{self.engine.get_rpc_port()}', 'base': self.offered}

    def connect(self, peer):
        self.segment, self.base = peer['segment'], peer['base']

    def step(self, write, kind, remote, pieces):
        local, base, segment, e = self.local[kind], self.base[remote], self.segment, self.engine
        here = [local + p[0] for p in pieces]
        there = [base + p[1] for p in pieces]
        sizes = [p[2] for p in pieces]
        if len(pieces) == 1:
            call = e.transfer_sync_write if write else e.transfer_sync_read
            words = segment, here[0], there[0], sizes[0]
        else:
            call = e.batch_transfer_sync_write if write else e.batch_transfer_sync_read
            words = segment, here, there, sizes

        def transfer():
            code = call(*words)
            if code != 0:
                raise RuntimeError(f'a transfer failed with {code}')
        return transfer
