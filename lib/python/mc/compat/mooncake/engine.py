"""`mooncake.engine` over mc: TransferEngine.

Peers are named host:port, as with their metadata server `P2PHANDSHAKE`; no other is there. A peer's
memory is named by its address, which engines of this module tell each other.
"""
from __future__ import annotations

import ctypes
import enum
import itertools
import os
import threading
from typing import Any, List, Optional, Sequence

from ... import engine as ours
from ...buffers import Span
from ...errors import McError, NotFound, Stale, Timeout, Unavailable
from .config import Refused, ignored, log, shared_options

SUPPORT_CUDA = SUPPORT_HIP = SUPPORT_EFA = SUPPORT_MUSA = SUPPORT_MNNVL = False
SUPPORT_INTRA_NVLINK = False
TRANSFER_SECONDS = 30.0
OPEN_SECONDS = 5.0
_numbers = itertools.count()


class TransferOpcode(enum.IntEnum):
    """Read: the peer's bytes into ours; Write: ours into the peer's."""

    Read = 0
    Write = 1


Read, Write = TransferOpcode.Read, TransferOpcode.Write


class TransferNotify:
    """A message behind a transfer."""

    def __init__(self, name: str = '', msg: str = '') -> None:
        self.name, self.msg = name, msg


class TransferEngine:
    """Memory that peers reach by address, and transfers to and from theirs."""

    TransferOpcode = TransferOpcode

    def __init__(self) -> None:
        self._engine: Optional[ours.Engine] = None
        self._memories: dict[int, ours.Memory] = {}
        self._managed: dict[int, ours.Memory] = {}
        self._peers: dict[str, ours.Peer] = {}
        self._flying: dict[int, ours.Batch] = {}
        self._ids = itertools.count(1)
        self._lock = threading.Lock()

    def initialize(self, local_hostname: str, metadata_server: str, protocol: str,
                   device_name: str) -> int:
        """0, or -1."""
        if metadata_server != 'P2PHANDSHAKE':
            log.error('metadata server %s: mc has P2PHANDSHAKE only: a peer is named host:port',
                      metadata_server)
            return -1
        host, _, port = local_hostname.partition(':')
        name = f'{host}-{os.getpid()}-{next(_numbers)}'
        try:
            self._engine = ours.Engine(name, listen=f'{host or "127.0.0.1"}:{port or 0}',
                                       addresses=True, **shared_options(protocol, device_name))
            return 0
        except (McError, Refused) as e:
            log.error('initialize: %s', e)
            return -1

    def initialize_ext(self, local_hostname: str, metadata_server: str, protocol: str,
                       device_name: str, metadata_type: str) -> int:
        """As initialize."""
        ignored(metadata_type=metadata_type)
        return self.initialize(local_hostname, metadata_server, protocol, device_name)

    def get_rpc_port(self) -> int:
        """Where peers reach it; 0 before initialize."""
        return 0 if self._engine is None else int(self._engine.address.rpartition(':')[2])

    # ---- memory

    def register_memory(self, buffer_addr: int, capacity: int, location: str = '*') -> int:
        """0; -7 when it is registered already; else -1."""
        if self._engine is None:
            return -1
        with self._lock:
            if buffer_addr in self._memories:
                return -7
            try:
                self._memories[buffer_addr] = self._engine.register(
                    Span(buffer_addr, capacity, None),
                    location=None if location in ('*', '') else location)
                return 0
            except McError as e:
                log.error('register_memory: %s', e)
                return -1

    def unregister_memory(self, buffer_addr: int) -> int:
        """0, or -1 when it is not registered."""
        with self._lock:
            memory = self._memories.pop(buffer_addr, None)
        if memory is None:
            return -1
        memory.close()
        return 0

    def batch_register_memory(self, buffer_addresses: Sequence[int], capacities: Sequence[int],
                              location: str = '*') -> int:
        """0, or the first failure."""
        return _first(self.register_memory(address, size, location)
                      for address, size in zip(buffer_addresses, capacities))

    def batch_unregister_memory(self, buffer_addresses: Sequence[int]) -> int:
        """0, or the first failure."""
        return _first(map(self.unregister_memory, buffer_addresses))

    def allocate_managed_buffer(self, size: int) -> int:
        """The address of new memory, or 0."""
        if self._engine is None:
            return 0
        try:
            memory = self._engine.allocate(size)
        except McError as e:
            log.error('allocate_managed_buffer: %s', e)
            return 0
        self._managed[memory.address] = memory
        return memory.address

    def free_managed_buffer(self, address: int, size: int) -> int:
        """0, or -1 when it is none of ours."""
        memory = self._managed.pop(address, None)
        if memory is None:
            return -1
        memory.close()
        return 0

    def _reaches(self, address: int, size: int) -> bool:
        return any(m.address <= address and address + size <= m.address + m.nbytes
                   for m in (*self._managed.values(), *self._memories.values()))

    def write_bytes_to_buffer(self, address: int, data: Any, size: int) -> int:
        """0, or -1 beyond the memory of this engine."""
        content = data.encode() if isinstance(data, str) else bytes(data)
        if size > len(content) or size < 0 or not self._reaches(address, size):
            return -1
        ctypes.memmove(address, content, size)
        return 0

    def read_bytes_from_buffer(self, address: int, size: int) -> bytes:
        """The bytes; b'' beyond the memory of this engine."""
        there = size >= 0 and self._reaches(address, size)
        return ctypes.string_at(address, size) if there else b''

    def get_first_buffer_address(self, name: str) -> int:
        """Of this engine, by its own address; 0 when there is none."""
        if self._engine is None or name != self._engine.address:
            raise NotImplementedError('get_first_buffer_address is not in mc for other engines: '
                                      'pass addresses on by a message of your own')
        return next(iter((*self._managed, *self._memories)), 0)

    # ---- transfers

    def _peer(self, name: str, seconds: float = OPEN_SECONDS) -> ours.Peer:
        with self._lock:
            found = self._peers.get(name)
        if found is None:
            assert self._engine is not None
            found = self._engine.open(name, seconds)
            with self._lock:
                self._peers[name] = found
        return found

    def _begin(self, target: str, buffers: Sequence[int], peers: Sequence[int],
               lengths: Sequence[int], opcode: int, notify: Optional[TransferNotify]) -> ours.Batch:
        """A batch under way. A peer that was restarted is opened anew, once."""
        if self._engine is None:
            raise Unavailable('initialize was not called')
        for last in (False, True):
            known = target in self._peers  # and may have been restarted since
            batch = self._engine.batch()
            try:
                peer = self._peer(target)
                add = batch.read if opcode == TransferOpcode.Read else batch.write
                for buffer, address, length in zip(buffers, peers, lengths):
                    add(Span(buffer, length, None), peer, peer.offset_of(address, length),
                        timeout=TRANSFER_SECONDS)
                if notify is None:
                    batch.submit()
                else:
                    batch.notify(notify.name, notify.msg.encode())
                return batch
            except (NotFound, Stale, Unavailable):
                batch.close()
                with self._lock:
                    self._peers.pop(target, None)
                if last or not known:
                    raise
            except BaseException:
                batch.close()
                raise
        raise AssertionError('not reached')

    def batch_transfer_sync(self, target_hostname: str, buffers: Sequence[int],
                            peer_buffer_addresses: Sequence[int], lengths: Sequence[int],
                            opcode: int, notify: Optional[TransferNotify] = None,
                            transport_hint: str = '') -> int:
        """0, or -1."""
        try:
            with self._begin(target_hostname, buffers, peer_buffer_addresses, lengths, opcode,
                             notify) as batch:
                batch.wait(TRANSFER_SECONDS)
            return 0
        except (McError, ValueError) as e:
            log.warning('transfer with %s: %s', target_hostname, e)
            return -1

    def batch_transfer_sync_read(self, target_hostname: str, buffers: Sequence[int],
                                 peer_buffer_addresses: Sequence[int], lengths: Sequence[int],
                                 transport_hint: str = '') -> int:
        """0, or -1."""
        return self.batch_transfer_sync(target_hostname, buffers, peer_buffer_addresses, lengths,
                                        Read)

    def batch_transfer_sync_write(self, target_hostname: str, buffers: Sequence[int],
                                  peer_buffer_addresses: Sequence[int], lengths: Sequence[int],
                                  transport_hint: str = '') -> int:
        """0, or -1."""
        return self.batch_transfer_sync(target_hostname, buffers, peer_buffer_addresses, lengths,
                                        Write)

    def transfer_sync(self, target_hostname: str, buffer: int, peer_buffer_address: int,
                      length: int, opcode: int, notify: Optional[TransferNotify] = None,
                      transport_hint: str = '') -> int:
        """0, or -1."""
        return self.batch_transfer_sync(target_hostname, [buffer], [peer_buffer_address], [length],
                                        opcode, notify)

    def transfer_sync_read(self, target_hostname: str, buffer: int, peer_buffer_address: int,
                           length: int, transport_hint: str = '') -> int:
        """0, or -1."""
        return self.transfer_sync(target_hostname, buffer, peer_buffer_address, length, Read)

    def transfer_sync_write(self, target_hostname: str, buffer: int, peer_buffer_address: int,
                            length: int, transport_hint: str = '') -> int:
        """0, or -1."""
        return self.transfer_sync(target_hostname, buffer, peer_buffer_address, length, Write)

    def batch_transfer_async(self, target_hostname: str, buffers: Sequence[int],
                             peer_buffer_addresses: Sequence[int], lengths: Sequence[int],
                             opcode: int, transport_hint: str = '') -> int:
        """An id; 0 when it could not begin."""
        try:
            batch = self._begin(target_hostname, buffers, peer_buffer_addresses, lengths, opcode,
                                None)
        except (McError, ValueError) as e:
            log.warning('transfer with %s: %s', target_hostname, e)
            return 0
        number = next(self._ids)
        self._flying[number] = batch
        return number

    def batch_transfer_async_read(self, target_hostname: str, buffers: Sequence[int],
                                  peer_buffer_addresses: Sequence[int], lengths: Sequence[int],
                                  transport_hint: str = '') -> int:
        """An id; 0 when it could not begin."""
        return self.batch_transfer_async(target_hostname, buffers, peer_buffer_addresses, lengths,
                                         Read)

    def batch_transfer_async_write(self, target_hostname: str, buffers: Sequence[int],
                                   peer_buffer_addresses: Sequence[int], lengths: Sequence[int],
                                   transport_hint: str = '') -> int:
        """An id; 0 when it could not begin."""
        return self.batch_transfer_async(target_hostname, buffers, peer_buffer_addresses, lengths,
                                         Write)

    def get_batch_transfer_status(self, batch_ids: Sequence[int]) -> int:
        """Waits for all of them; 0 when all are done. The ids mean nothing afterwards."""
        return _first(self._finish(number) for number in list(batch_ids))

    def _finish(self, number: int) -> int:
        batch = self._flying.pop(number, None)
        if batch is None:
            return -1
        with batch:
            try:
                batch.wait(TRANSFER_SECONDS)
                return 0
            except Timeout:
                return -2
            except McError:
                return -1

    def transfer_submit_write(self, target_hostname: str, buffer: int, peer_buffer_address: int,
                              length: int, transport_hint: str = '') -> int:
        """An id; -1 when it could not begin."""
        return self.batch_transfer_async(target_hostname, [buffer], [peer_buffer_address], [length],
                                         Write) or -1

    def transfer_check_status(self, number: int) -> int:
        """1: done; 0: running; -1: failed; -2: timed out. An id that is done means nothing
        afterwards."""
        batch = self._flying.get(number)
        if batch is None:
            return -1
        state = batch.status(0).state
        if state in (ours.State.WAITING, ours.State.PENDING):
            return 0
        self._flying.pop(number, None)
        batch.close()
        if state is ours.State.COMPLETED:
            return 1
        return -2 if state is ours.State.TIMED_OUT else -1

    # ---- peers

    def get_notifies(self) -> List[TransferNotify]:
        """What peers have sent behind their transfers."""
        if self._engine is None:
            return []
        return [TransferNotify(n.name, n.data.decode(errors='replace'))
                for n in self._engine.notices()]

    def send_probe(self, peer_server_name: str) -> int:
        """0 when the peer answers within a second, else 1."""
        if self._engine is None:
            return 1
        try:
            self._engine.open(peer_server_name, 1.0)
            return 0
        except McError:
            return 1

    def get_local_topology(self, device_name: Optional[str] = None) -> str:
        """NUMA nodes, without devices: `mc-topo show` has those."""
        nodes = sorted(int(name[4:]) for name in os.listdir('/sys/devices/system/node')
                       if name.startswith('node') and name[4:].isdigit()) \
            if os.path.isdir('/sys/devices/system/node') else [0]
        inner = ',\n'.join(f'\t"cpu:{n}" : \n\t[\n\t\t[],\n\t\t[]\n\t]' for n in nodes or [0])
        return '{\n' + inner + '\n}\n'

    def __getattr__(self, name: str) -> Any:
        if name in ('get_engine', 'get_engine_ptr', 'warmup_efa_segment'):
            return _refusal(name)
        raise AttributeError(f'TransferEngine has no {name}')


def _first(outcomes: Any) -> int:
    return next((code for code in list(outcomes) if code), 0)


def _refusal(name: str) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f'{name} is not in mc: use transfers by address')
    return refuse


CoroRPCInterface = RpcInterface = SharedSegment = _refusal('this class')
create_rpc_client, create_rpc_server = _refusal('create_rpc_client'), _refusal('create_rpc_server')
