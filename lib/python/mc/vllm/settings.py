"""What `kv_connector_extra_config` may say, and what it means where it says nothing."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mc._settings import PASSED, near, one_of, passed, seconds, size, truth

_KNOWN = ('master', 'name', 'load', 'save', 'save-decoded', 'timeout', 'lookup-patience', 'wait',
          'save-queue', 'offer', 'trust-layout', *PASSED)


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
            out.load = one_of(name, value, ('async', 'off'))
        elif name == 'save':
            out.save = one_of(name, value, ('async', 'sync', 'off'))
        elif name == 'save-decoded':
            out.save_decoded = truth(name, value)
        elif name == 'timeout':
            out.timeout = seconds(name, value)
        elif name == 'lookup-patience':
            out.lookup_patience = seconds(name, value)
        elif name == 'wait':
            out.wait = seconds(name, value)
        elif name == 'save-queue':
            out.save_queue = size(name, value)
        elif name == 'offer':
            out.offer = size(name, value)
        elif name == 'trust-layout':
            out.trust_layout = truth(name, value)
        elif name in PASSED:
            out.options[name] = passed(value)
        else:
            raise ValueError(f'kv_connector_extra_config has {name!r}, which mc does not know; '
                             + near(name, _KNOWN))
    return out
