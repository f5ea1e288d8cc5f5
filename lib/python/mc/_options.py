"""Options of the library, from Python's values."""
from __future__ import annotations

import contextlib
import math
from ctypes import byref, c_void_p
from typing import Any, Iterator, Mapping

from ._abi import lib
from .errors import Invalid

DURATIONS = frozenset(('timeout', 'put-wait', 'peer-timeout', 'ttl'))  # numbers are seconds


def text(name: str, value: Any) -> str:
    """A value as the command line has it."""
    if isinstance(value, bool):
        return 'true' if value else 'false'
    if isinstance(value, (int, float)) and name in DURATIONS:
        if not math.isfinite(value):
            raise Invalid(f'{name} {value}: want a number of seconds')
        return f'{round(value * 1e9)}ns'
    if isinstance(value, (list, tuple)):
        return ','.join(map(str, value))
    return str(value)


def c_text(text: str) -> bytes:
    """A text as C has it: it would end at a NUL, and mean something else."""
    if '\0' in text:
        raise Invalid(f'{text[:100]!r} has a NUL in it')
    return text.encode()


def milliseconds(seconds: float) -> int:
    """For the library's waits: rounded up, at most 49 days."""
    if math.isinf(seconds) and seconds > 0:
        return 0xffffffff
    if not math.isfinite(seconds):
        raise ValueError(f'{seconds}: want a number of seconds')
    return min(max(-int(-seconds * 1000 // 1), 0), 0xffffffff)


@contextlib.contextmanager
def given(options: Mapping[str, Any]) -> Iterator[int]:
    """An mc_options with these names (`put_wait` is `put-wait`) and values; None is left out."""
    out = c_void_p()
    lib.mc_options_new(byref(out))
    try:
        for name, value in options.items():
            if value is not None:
                name = name.replace('_', '-')
                lib.mc_options_set(out, c_text(name), c_text(text(name, value)))
        assert out.value is not None
        yield out.value
    finally:
        lib.mc_options_free(out)
