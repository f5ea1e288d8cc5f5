"""Settings in Mooncake's words: ReplicateConfig, and the arguments of setup."""
from __future__ import annotations

import enum
import logging
import os
import re
from typing import Any, List, Optional, Union

from ...options import PutOptions

log = logging.getLogger('mc.compat.mooncake')

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
        named = ', '.join(f'{name}: {value}' for name, value in vars(self).items())
        return f'ReplicateConfig: {{ {named} }}'


def put_options(config: Optional[ReplicateConfig], replace: bool = False) -> PutOptions:
    """Ours, of theirs. Raises `Refused`."""
    if config is None:
        return PutOptions(replace=replace)
    if config.nof_replica_num > 0 or config.dfs_replica_num > 0:
        raise Refused('nof_replica_num and dfs_replica_num')
    pin, ttl = '', 0.0
    if config.with_hard_pin:
        pin = 'hard'
    elif config.with_soft_pin or config.soft_pin_action == SoftPinAction.ENABLE:
        pin, ttl = 'soft', (config.soft_pin_ttl_ms or 0) / 1000
    prefer = config.preferred_segments or ([config.preferred_segment]
                                           if config.preferred_segment else [])
    return PutOptions(replicas=config.replica_num, pin=pin, ttl=ttl, prefer=prefer or None,
                      group=','.join(config.group_ids) if config.group_ids else None,
                      prefer_local=config.prefer_alloc_in_same_node, replace=replace)


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
