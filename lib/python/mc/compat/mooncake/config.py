"""Settings in Mooncake's words: ReplicateConfig, and the arguments of setup."""
from __future__ import annotations

import enum
import logging
import os
import re
from dataclasses import replace
from typing import Any, Iterable, List, Optional, Sequence, Tuple, Union

from ..._pack import Key
from ...options import REPLICAS_MAX, PutOptions
from . import codes

log = logging.getLogger('mc.compat.mooncake')

SOFT_PIN_MS = 86_400_000  # at most, as their master's default
_UNITS = {'': 1, 'B': 1, 'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30, 'T': 1 << 40}


class SoftPinAction(enum.IntEnum):
    """What a put does to the soft pin of a value."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class ObjectDataType(enum.IntEnum):
    """What a value is; mc makes no difference between them."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class Refused(Exception):
    """A setting that mc does not have: -1012 to the caller."""


class ReplicateConfig:
    """How a put is kept."""

    def __init__(self) -> None:
        self.replica_num = 1
        self.with_soft_pin = False
        self.with_hard_pin = False
        self.soft_pin_action = SoftPinAction.PRESERVE
        self.soft_pin_ttl_ms: Optional[int] = None
        self.preferred_segment = ''
        self.preferred_segments: List[str] = []
        self.prefer_alloc_in_same_node = False
        self.preferred_nof_segments: List[str] = []
        self.nof_replica_num = 0
        self.dfs_replica_num = 0
        self.group_ids: Optional[List[str]] = None
        self.data_type = ObjectDataType.UNKNOWN

    def __str__(self) -> str:
        ttl = 'default' if self.soft_pin_ttl_ms is None else self.soft_pin_ttl_ms
        shown = {
            'replica_num': self.replica_num, 'nof_replica_num': self.nof_replica_num,
            'dfs_replica_num': self.dfs_replica_num,
            'soft_pin_action': SoftPinAction(self.soft_pin_action).name, 'soft_pin_ttl_ms': ttl,
            'with_hard_pin': int(self.with_hard_pin),
            'preferred_segments': f'[{", ".join(self.preferred_segments)}]',
            'preferred_nof_segments': f'[{", ".join(self.preferred_nof_segments)}]',
            'prefer_alloc_in_same_node': int(self.prefer_alloc_in_same_node),
            'data_type': ObjectDataType(self.data_type).name}
        named = ', '.join(f'{name}: {value}' for name, value in shown.items())
        return f'ReplicateConfig: {{ {named} }}'


class PutHow:
    """A ReplicateConfig in our words: a code when it is refused, else options for each key."""

    def __init__(self, code: int, options: PutOptions, groups: Sequence[str] = ()) -> None:
        self.code, self._options, self._groups = code, options, groups

    def each(self, count: int) -> List[PutOptions]:
        """Options of each of that many keys."""
        groups = self._groups or [''] * count
        return [replace(self._options, group=group or None) for group in groups]

    def shares(self, keys: Sequence[Key]) -> Iterable[Tuple[PutOptions, Sequence[Key]]]:
        """Keys that have options in common."""
        if not self._groups:
            yield self._options, list(dict.fromkeys(keys))
        for group in dict.fromkeys(self._groups):
            yield (replace(self._options, group=group or None),
                   list(dict.fromkeys(key for key, g in zip(keys, self._groups) if g == group)))


def put_options(config: Optional[ReplicateConfig], replaces: bool = False,
                keys: int = 1, own: str = '') -> PutHow:
    """Ours, of theirs, for that many keys. `own` is what the client's own segment is called."""
    if config is None:
        return PutHow(0, PutOptions(replace=replaces))
    if not isinstance(config, ReplicateConfig):
        raise TypeError(f'a ReplicateConfig is wanted, not {type(config).__name__}')
    if config.dfs_replica_num > 0:
        return PutHow(codes.NO_SHARED_DISK, PutOptions())
    pinned = (getattr(config, 'with_soft_pin', False)
              or config.soft_pin_action == SoftPinAction.ENABLE)
    groups = config.group_ids or []
    ttl = config.soft_pin_ttl_ms
    if config.nof_replica_num > 0 or config.replica_num < 1 or (groups and len(groups) != keys) or (
            ttl is not None and not (pinned and ttl <= SOFT_PIN_MS)):
        return PutHow(codes.INVALID, PutOptions())
    pin = 'hard' if config.with_hard_pin else 'soft' if pinned else ''
    prefer = config.preferred_segments or ([config.preferred_segment]
                                           if config.preferred_segment else [])
    local = config.prefer_alloc_in_same_node or own in prefer
    prefer = [name for name in prefer if name != own]
    return PutHow(0, PutOptions(
        replicas=min(config.replica_num, REPLICAS_MAX), pin=pin,
        ttl=max(ttl or 0, 0) / 1000 if pin == 'soft' else 0.0,
        prefer=prefer or None, prefer_local=local, replace=replaces),
        groups)


def size_of(value: Union[int, str]) -> int:
    """Bytes, of a number or of text such as '4GB'."""
    if isinstance(value, int):
        return value
    found = re.fullmatch(r'\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*', value, re.I)
    if found is None:
        raise ValueError(f'{value!r} is not a size')
    return int(float(found[1]) * _UNITS[found[2].upper()])


def true_of(value: Any) -> bool:
    """Of a boolean, or of text."""
    return value.strip().lower() in ('1', 'true', 'yes', 'on') if isinstance(value, str) \
        else bool(value)


def ignored(**settings: Any) -> None:
    """One log line for each setting that is given and means nothing here."""
    for name, value in settings.items():
        if value:
            log.info('%s=%s is ignored: mc has no such setting', name, value)


def shared_options(protocol: str, devices: str) -> dict[str, Any]:
    """Options of the engine beneath either module; $MC_CLUSTER_KEY names the cluster's secret."""
    options: dict[str, Any] = {'cluster_key': os.environ.get('MC_CLUSTER_KEY') or None}
    if protocol == 'rdma':
        options['transports'] = 'shm,rdma,tcp'
        options['nics'] = devices or None
    elif protocol not in ('', 'tcp'):
        raise Refused(f'protocol {protocol}')
    return options
