"""`mooncake.engine` over mc: TransferEngine.

Peers are named host:port, as with their metadata server `P2PHANDSHAKE`; no other is there. A peer's
memory is named by its address, which engines of this module tell each other.
"""
from __future__ import annotations

import ctypes
import enum
import itertools
import os
import socket
import threading
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from ... import engine as ours
from ...buffers import Span
from ...errors import Code, Invalid, McError, NotFound, Stale, Timeout, Unavailable
from .arguments import lists, numbers
from .config import Refused, ignored, log, shared_options

SUPPORT_CUDA = SUPPORT_HIP = SUPPORT_EFA = SUPPORT_MUSA = SUPPORT_MNNVL = False
SUPPORT_INTRA_NVLINK = False
TRANSFER_SECONDS = 30.0
OPEN_SECONDS = 5.0
ALREADY, NOT_REGISTERED, NO_NAME, NO_ANSWER = -7, -3, -101, -102
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


class Flight(NamedTuple):
    """A batch under way, and what it was made of: memory that a peer has registered anew makes it
    stale, and it is begun again."""

    batch: Optional[ours.Batch]  # None: it has failed
    words: Tuple[Any, ...]


class TransferEngine:
    """Memory that peers reach by address, and transfers to and from theirs."""

    TransferOpcode = TransferOpcode

    def __init__(self) -> None:
        self._engine: Optional[ours.Engine] = None
        self._memories: dict[int, ours.Memory] = {}
        self._managed: dict[int, ours.Memory] = {}
        self._peers: dict[str, ours.Peer] = {}
        self._flying: dict[int, Flight] = {}
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

    def get_engine(self) -> 'TransferEngine':
        """What `setup` of a store takes as its `engine`, and has no use for here."""
        return self

    # ---- memory

    def register_memory(self, buffer_addr: int, capacity: int, location: str = '*') -> int:
        """0; -7 when a part of it is registered already; else -1."""
        if self._engine is None or capacity == 0:
            return -1
        with self._lock:
            if self._overlaps(buffer_addr, capacity):
                return ALREADY
            try:
                self._memories[buffer_addr] = self._engine.register(
                    Span(buffer_addr, capacity, None),
                    location=None if location in ('*', '') else location)
                return 0
            except McError as e:
                log.error('register_memory: %s', e)
                return -1

    def _overlaps(self, address: int, size: int) -> bool:
        return any(m.address < address + size and address < m.address + m.nbytes
                   for m in self._memories.values())

    def unregister_memory(self, buffer_addr: int) -> int:
        """0, or -3 when it is not registered."""
        with self._lock:
            memory = self._memories.pop(buffer_addr, None)
        if memory is None:
            return NOT_REGISTERED
        memory.close()
        return 0

    def batch_register_memory(self, buffer_addresses: Sequence[int], capacities: Sequence[int],
                              location: str = '*') -> int:
        """0, or a failure: then none of them is registered."""
        lists(buffer_addresses, capacities)
        if len(capacities) < len(buffer_addresses):
            return -1
        done: List[int] = []
        for address, size in zip(buffer_addresses, capacities):
            code = self.register_memory(address, size, location)
            if code:
                self.batch_unregister_memory(done)
                return code
            done.append(address)
        return 0

    def batch_unregister_memory(self, buffer_addresses: Sequence[int]) -> int:
        """0, or the first failure."""
        lists(buffer_addresses)
        return _first(map(self.unregister_memory, buffer_addresses))

    def allocate_managed_buffer(self, size: int) -> int:
        """The address of new memory, or 0."""
        if size < 0:
            raise TypeError('a size is not negative')
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
        """Of this engine, by its own address; 0 when there is none, or nobody of that name."""
        if self._engine is not None and name != self._engine.address and self.send_probe(name):
            return 0
        if self._engine is None or name != self._engine.address:
            raise NotImplementedError('get_first_buffer_address of a peer is not in mc: '
                                      'pass addresses on by a message of your own')
        return next(iter((*self._managed, *self._memories)), 0)

    # ---- transfers

    def _peer(self, name: str, seconds: float = OPEN_SECONDS) -> ours.Peer:
        with self._lock:
            found = self._peers.get(name)
        if found is None:
            assert self._engine is not None
            _refused(name, seconds)
            found = self._engine.open(name, seconds)
            with self._lock:
                self._peers[name] = found
        return found

    def _begin(self, target: str, buffers: Sequence[int], peers: Sequence[int],
               lengths: Sequence[int], opcode: int, notify: Optional[TransferNotify]) -> ours.Batch:
        """A batch under way. A peer that was restarted is opened anew, once."""
        if self._engine is None:
            raise Unavailable('initialize was not called')
        if not lists(buffers, peers, lengths):
            raise Invalid('buffers, addresses and lengths are not equally many')
        numbers(buffers, peers, lengths)
        if notify is not None and not buffers:
            raise Invalid('a notice wants a transfer that it comes behind')
        for last in (False, True):
            known = target in self._peers  # and may have been restarted since
            batch = self._engine.batch()
            try:
                peer = self._peer(target)
                add = batch.read if opcode == TransferOpcode.Read else batch.write
                for buffer, address, length in zip(buffers, peers, lengths):
                    if length:
                        add(Span(buffer, length, None), peer, peer.offset_of(address, length),
                            timeout=TRANSFER_SECONDS)
                if notify is None:
                    batch.submit()
                elif not any(lengths):  # nothing to move before it
                    peer.notify(notify.name, notify.msg.encode())
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
        words = (target_hostname, buffers, peer_buffer_addresses, lengths, opcode, notify)
        try:
            try:
                with self._begin(*words) as batch:
                    batch.wait(TRANSFER_SECONDS)
            except Stale:  # the peer has registered its memory anew
                with self._begin(*words) as batch:
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
        words = (target_hostname, buffers, peer_buffer_addresses, lengths, opcode, None)
        try:
            flight = Flight(self._begin(*words), words)
        except NotFound as e:  # the peer is there, an address is not: it begins, and fails
            log.warning('transfer with %s: %s', target_hostname, e)
            flight = Flight(None, words)
        except (McError, ValueError) as e:
            log.warning('transfer with %s: %s', target_hostname, e)
            return 0
        number = next(self._ids)
        self._flying[number] = flight
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
        flight = self._flying.pop(number, None)
        if flight is None or flight.batch is None:
            return -1
        with flight.batch as batch:
            try:
                batch.wait(TRANSFER_SECONDS)
                return 0
            except Timeout:
                return -2
            except Stale:
                return self.batch_transfer_sync(*flight.words)
            except McError:
                return -1

    def transfer_submit_write(self, target_hostname: str, buffer: int, peer_buffer_address: int,
                              length: int, transport_hint: str = '') -> int:
        """An id; 0 when it could not begin."""
        return self.batch_transfer_async(target_hostname, [buffer], [peer_buffer_address], [length],
                                         Write)

    def transfer_check_status(self, number: int) -> int:
        """1: done; 0: running; -1: failed; -2: timed out. An id that is done means nothing
        afterwards."""
        flight = self._flying.get(number)
        if flight is None or flight.batch is None:
            return -1
        state, code = ours.State.COMPLETED, Code.OK
        if any(flight.words[3]):  # else there is nothing to move
            state, code, _ = flight.batch.status(0)
        if state in (ours.State.WAITING, ours.State.PENDING):
            return 0
        self._flying.pop(number, None)
        flight.batch.close()
        if code is Code.STALE:
            return 1 if self.batch_transfer_sync(*flight.words) == 0 else -1
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
        """0 when the peer answers within a second, else -102; -101 for what is no host:port."""
        if self._engine is None:
            return 1
        if not peer_server_name.rpartition(':')[2].isdigit():
            return NO_NAME
        try:
            _refused(peer_server_name, 1.0)
            self._engine.open(peer_server_name, 1.0)
            return 0
        except McError:
            return NO_ANSWER

    def get_local_topology(self, device_name: Optional[str] = None) -> str:
        """NUMA nodes, without devices: `mc-topo show` has those."""
        nodes = sorted(int(name[4:]) for name in os.listdir('/sys/devices/system/node')
                       if name.startswith('node') and name[4:].isdigit()) \
            if os.path.isdir('/sys/devices/system/node') else [0]
        inner = ',\n'.join(f'\t"cpu:{n}" : \n\t[\n\t\t[],\n\t\t[]\n\t]' for n in nodes or [0])
        return '{\n' + inner + '\n}\n'

    def __getattr__(self, name: str) -> Any:
        if name in ('get_engine_ptr', 'warmup_efa_segment'):
            return _refusal(name)
        raise AttributeError(f'TransferEngine has no {name}')


def _refused(peer: str, seconds: float) -> None:
    """Raises where nobody listens: mc itself waits for a peer that may come."""
    host, _, port = peer.rpartition(':')
    if not host or not port.isdigit():
        raise Unavailable(f'{peer!r} is not a peer: host:port names one')
    try:
        socket.create_connection((host, int(port)), seconds).close()
    except (OSError, OverflowError) as e:
        raise Unavailable(f'{peer}: {e}') from None


def _first(outcomes: Any) -> int:
    return next((code for code in list(outcomes) if code), 0)


def _refusal(name: str) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f'{name} is not in mc: use transfers by address')
    return refuse


CoroRPCInterface = RpcInterface = SharedSegment = _refusal('this class')
create_rpc_client, create_rpc_server = _refusal('create_rpc_client'), _refusal('create_rpc_server')
