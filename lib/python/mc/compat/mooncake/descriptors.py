"""Where copies of a value lie, in objects that look like Mooncake's."""
from __future__ import annotations

import enum
from typing import Union

from ...store import Place


class ReplicaStatus(enum.IntEnum):
    """How far a copy is; the copies that mc tells of are complete."""

    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


COMPLETE = ReplicaStatus.COMPLETE


class Descriptor:
    """Of memory. mc does not tell addresses: `buffer_address` is 0."""

    def __init__(self, size: int = 0, transport_endpoint: str = '') -> None:
        self.size, self.transport_endpoint, self.buffer_address = size, transport_endpoint, 0


class MemoryDescriptor:
    """Of a copy in memory."""

    def __init__(self, buffer_descriptor: Descriptor) -> None:
        self.buffer_descriptor = buffer_descriptor


class DiskDescriptor:
    """Of a copy on the disk of a node, which `file_path` names."""

    def __init__(self, file_path: str, object_size: int) -> None:
        self.file_path, self.object_size = file_path, object_size


class ReplicaDescriptor:
    """Of a copy."""

    def __init__(self, held: Union[MemoryDescriptor, DiskDescriptor]) -> None:
        self.status = COMPLETE
        self._held = held

    def is_memory_replica(self) -> bool:
        """Whether it is in memory."""
        return isinstance(self._held, MemoryDescriptor)

    def is_disk_replica(self) -> bool:
        """Whether it is on a disk that all nodes share: never."""
        return False

    def is_local_disk_replica(self) -> bool:
        """Whether it is on the disk of one node."""
        return isinstance(self._held, DiskDescriptor)

    def get_memory_descriptor(self) -> MemoryDescriptor:
        """Of a copy in memory."""
        if not isinstance(self._held, MemoryDescriptor):
            raise RuntimeError('this copy is not in memory')
        return self._held

    def get_disk_descriptor(self) -> DiskDescriptor:
        """Of a copy on a disk."""
        if not isinstance(self._held, DiskDescriptor):
            raise RuntimeError('this copy is not on a disk')
        return self._held


def describe(place: Place) -> ReplicaDescriptor:
    """Of where mc says that a copy lies."""
    if place.tier == 'memory':
        return ReplicaDescriptor(MemoryDescriptor(Descriptor(place.bytes, place.node)))
    return ReplicaDescriptor(DiskDescriptor(place.node, place.bytes))
