"""How one put is kept: `PutOptions`."""
from __future__ import annotations

import ctypes
import dataclasses
import math
from functools import cached_property
from typing import Optional, Sequence, Union

from ._abi import CONSTANTS, mc_put_options
from ._options import c_text

_CLASSES = {'': 0, 'normal': CONSTANTS['MC_CLASS_NORMAL'],
            'ephemeral': CONSTANTS['MC_CLASS_EPHEMERAL'], 'context': CONSTANTS['MC_CLASS_CONTEXT']}
_PINS = {'': 0, 'none': CONSTANTS['MC_PIN_NONE'], 'soft': CONSTANTS['MC_PIN_SOFT'],
         'hard': CONSTANTS['MC_PIN_HARD']}


REPLICAS_MAX = 8  # of one value


def _one_of(names: dict[str, int], name: str, what: str) -> int:
    if name not in names:
        raise ValueError(f'{what} {name!r}: want one of {", ".join(filter(None, names))}')
    return names[name]


@dataclasses.dataclass(frozen=True)
class PutOptions:
    """Where a put differs from its store's options; what is not named is as those are.

    replicas    copies of the value
    cls         'normal', 'ephemeral' or 'context'
    pin, ttl    'none', 'soft' or 'hard'; how many seconds the pin or a context lasts
    prefer      the node to put on while it has room
    group       values of a group are leased and evicted together
    tenant      whose value
    prefer_local    on nodes of this host while they have room
    replace     removes what is stored under the key first
    """

    replicas: int = 0
    cls: str = ''
    pin: str = ''
    ttl: float = 0.0
    prefer: Union[str, Sequence[str], None] = None
    group: Optional[str] = None
    tenant: Optional[str] = None
    prefer_local: bool = False
    replace: bool = False

    @cached_property
    def native(self) -> mc_put_options:
        """For the library."""
        if not 0 <= self.replicas <= REPLICAS_MAX:
            raise ValueError(f'replicas {self.replicas}: want 1 to {REPLICAS_MAX}, or 0: as the '
                             'store')
        prefer = self.prefer
        if prefer is not None and not isinstance(prefer, str):
            prefer = ','.join(prefer)
        flags = CONSTANTS['MC_PUT_PREFER_LOCAL'] * self.prefer_local
        flags |= CONSTANTS['MC_PUT_REPLACE'] * self.replace
        return mc_put_options(
            ctypes.sizeof(mc_put_options), self.replicas, _one_of(_CLASSES, self.cls, 'cls'),
            _one_of(_PINS, self.pin, 'pin'), _ttl(self.ttl), _text(prefer),
            _text(self.group), _text(self.tenant), flags)


def _ttl(seconds: float) -> int:
    """In milliseconds, rounded up: what is negative is not for ever."""
    if not 0 <= seconds <= 8e9:
        raise ValueError(f'ttl {seconds}: want 0, which is for ever, to 8e9 seconds')
    return math.ceil(seconds * 1000)


def _text(value: Optional[str]) -> Optional[bytes]:
    return None if value is None else c_text(value)


def native(options: Optional[PutOptions]) -> Optional[mc_put_options]:
    """Of options that may not be there."""
    return None if options is None else options.native
