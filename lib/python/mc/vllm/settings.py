"""What `kv_connector_extra_config` may say, and what it means where it says nothing."""
from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_BYTES = {'': 1, 'B': 1, 'KB': 10**3, 'MB': 10**6, 'GB': 10**9}
_BYTES |= {'KiB': 1 << 10, 'MiB': 1 << 20, 'GiB': 1 << 30}
_SECONDS = {'us': 1e-6, 'ms': 1e-3, 's': 1.0, 'm': 60.0}

# Options of mc_options_set that are passed on as they are.
_PASSED = ('tenant', 'cluster-key', 'transports', 'listen', 'replicas', 'class', 'ttl',
           'prefer-local')


def _number(name: str, value: Any, units: Mapping[str, float]) -> float:
    match = re.fullmatch(r'\s*([0-9.]+)\s*([A-Za-z]*)\s*', str(value))
    if match is not None and match[2] == '' and float(match[1]) == 0:
        return 0.0
    if match is None or match[2] not in units:
        wanted = ', '.join(unit for unit in units if unit)
        raise ValueError(f'{name}: {value!r} is no number with one of {wanted}')
    return float(match[1]) * units[match[2]]


def _one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{name}: {value!r} is none of {', '.join(choices)}")
    return str(value)


def _bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f'{name}: {value!r} is neither true nor false')
    return value


@dataclass
class Settings:
    """Durations are seconds, sizes bytes."""

    master: str = '127.0.0.1:5550'
    name: str = ''
    load: str = 'async'  # async, off
    save: str = 'async'  # async, sync, off
    save_decoded: bool = True
    timeout: float = 2.0  # of one call to the pool
    lookup_patience: float = 0.05
    wait: float = 0.0  # for blocks of a prompt that another engine computes
    save_queue: int = 256 << 20
    offer: int = 0  # bytes of this server's memory for the pool, over all ranks
    trust_layout: bool = False
    options: dict[str, str] = field(default_factory=dict)  # of the store's client


def parse(extra: Mapping[str, Any]) -> Settings:
    """Raises ValueError that names what is wrong, and the nearest name that is right."""
    out = Settings()
    for name, value in extra.items():
        if name == 'master':
            out.master = str(value)
        elif name == 'name':
            out.name = str(value)
        elif name == 'load':
            out.load = _one_of(name, value, ('async', 'off'))
        elif name == 'save':
            out.save = _one_of(name, value, ('async', 'sync', 'off'))
        elif name == 'save-decoded':
            out.save_decoded = _bool(name, value)
        elif name == 'timeout':
            out.timeout = _number(name, value, _SECONDS)
        elif name == 'lookup-patience':
            out.lookup_patience = _number(name, value, _SECONDS)
        elif name == 'wait':
            out.wait = _number(name, value, _SECONDS)
        elif name == 'save-queue':
            out.save_queue = int(_number(name, value, _BYTES))
        elif name == 'offer':
            out.offer = int(_number(name, value, _BYTES))
        elif name == 'trust-layout':
            out.trust_layout = _bool(name, value)
        elif name in _PASSED:
            word = str(value).lower() if isinstance(value, bool) else str(value)
            out.options[name] = word
        else:
            raise ValueError(f'kv_connector_extra_config has {name!r}, which mc does not know; '
                             + _near(name))
    return out


def _near(name: str) -> str:
    known = ['master', 'name', 'load', 'save', 'save-decoded', 'timeout', 'lookup-patience',
             'wait', 'save-queue', 'offer', 'trust-layout', *_PASSED]
    near = difflib.get_close_matches(name, known, 1)
    return f'did you mean {near[0]!r}?' if near else f"it knows {', '.join(sorted(known))}"
