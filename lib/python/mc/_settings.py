"""Values of an engine's configuration: numbers with units, and the names that a client of the
store knows."""
from __future__ import annotations

import difflib
import re
from typing import Any, Iterable, Mapping

_BYTES = {'': 1, 'B': 1, 'KB': 10**3, 'MB': 10**6, 'GB': 10**9}
_BYTES |= {'KiB': 1 << 10, 'MiB': 1 << 20, 'GiB': 1 << 30}
_SECONDS = {'us': 1e-6, 'ms': 1e-3, 's': 1.0, 'm': 60.0}

# Options of mc_options_set that are passed on as they are.
PASSED = ('tenant', 'cluster-key', 'transports', 'listen', 'replicas', 'class', 'ttl',
          'prefer-local')


def _number(name: str, value: Any, units: Mapping[str, float]) -> float:
    match = re.fullmatch(r'\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*', str(value))
    if match is not None and match[2] == '' and float(match[1]) == 0:
        return 0.0
    if match is None or match[2] not in units:
        wanted = ', '.join(unit for unit in units if unit)
        raise ValueError(f'{name}: {value!r} is no number with one of {wanted}')
    return float(match[1]) * units[match[2]]


def seconds(name: str, value: Any) -> float:
    """Of '2s' or '50ms'."""
    return _number(name, value, _SECONDS)


def size(name: str, value: Any) -> int:
    """Bytes, of '4GiB' or a plain number."""
    return int(_number(name, value, _BYTES))


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """The value, which must be one of them."""
    if value not in choices:
        raise ValueError(f"{name}: {value!r} is none of {', '.join(choices)}")
    return str(value)


def truth(name: str, value: Any) -> bool:
    """The value, which must be true or false."""
    if not isinstance(value, bool):
        raise ValueError(f'{name}: {value!r} is neither true nor false')
    return value


def passed(value: Any) -> str:
    """A value of an option that is passed on, as the library takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def near(name: str, known: Iterable[str]) -> str:
    """What a name that is not known may have meant."""
    known = sorted(known)
    found = difflib.get_close_matches(name, known, 1)
    return f'did you mean {found[0]!r}?' if found else f"it knows {', '.join(known)}"
