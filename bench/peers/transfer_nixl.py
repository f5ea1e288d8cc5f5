"""NIXL with UCX, by its own Python package. It has no memory of its own, and takes none that is not
registered: `unregistered` registers for each call, as an application would have to."""
import base64
import os

from nixl_cu12._api import nixl_agent, nixl_agent_config
from transfer_worker import TransferWorker

import area


class Peer(TransferWorker):
    """One agent."""

    def open(self, transport):
        del transport  # UCX_TLS says it
        self.name = f'bench-{os.getpid()}'
        self.agent, self.pages = nixl_agent(self.name, nixl_agent_config(backends=['UCX'])), []

    def own(self, size):
        return self.register(size)

    def register(self, size):
        pages = area.Area(size)
        self.pages.append(pages)
        self.agent.register_memory([(pages.address, size, 0, '')], 'DRAM')
        return pages.address

    def offer(self):
        metadata = base64.b64encode(self.agent.get_agent_metadata()).decode()
        return {'metadata': metadata, 'base': self.offered}

    def connect(self, peer):
        self.remote = self.agent.add_remote_agent(base64.b64decode(peer['metadata']))
        if isinstance(self.remote, bytes):
            self.remote = self.remote.decode()
        self.base = peer['base']

    def _handle(self, write, kind, remote, pieces):
        local, base = self.local[kind], self.base[remote]
        here = self.agent.get_xfer_descs([(local + p[0], p[2], 0) for p in pieces], 'DRAM')
        there = self.agent.get_xfer_descs([(base + p[1], p[2], 0) for p in pieces], 'DRAM')
        return self.agent.initialize_xfer('WRITE' if write else 'READ', here, there, self.remote)

    def _carry(self, handle):
        state = self.agent.transfer(handle)
        while state == 'PROC':
            state = self.agent.check_xfer_state(handle)
        if state != 'DONE':
            raise RuntimeError(f'a transfer ended as {state}')

    def step(self, write, kind, remote, pieces):
        if kind != 'unregistered':
            handle = self._handle(write, kind, remote, pieces)
            return lambda: self._carry(handle)
        local, end = self.local[kind], max(p[0] + p[2] for p in pieces)

        def registered_for_one():
            registered = self.agent.register_memory([(local, end, 0, '')], 'DRAM')
            handle = self._handle(write, kind, remote, pieces)
            self._carry(handle)
            self.agent.release_xfer_handle(handle)
            self.agent.deregister_memory(registered)
        return registered_for_one
