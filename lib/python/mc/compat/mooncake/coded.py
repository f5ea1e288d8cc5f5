"""What the methods of MooncakeDistributedStore share: failures as codes, and memory by address."""
from __future__ import annotations

import ctypes
import functools
from typing import Any, Callable, List, Sequence

from ..._pack import Key
from ...buffers import Span
from ...errors import McError
from . import codes
from .arguments import storable
from .config import Refused

Pieces = Sequence[Sequence[int]]


def coded(absent: Any = codes.NOT_SET_UP) -> Callable[[Any], Any]:
    """Failures as codes; `absent` is what the method gives before setup: a value, or a function of
    its first argument."""
    def wrap(method: Any) -> Any:
        @functools.wraps(method)
        def call(self: Any, *words: Any, **named: Any) -> Any:
            if self._store is None:
                first = words[0] if words else next(iter(named.values()), ())
                return absent(first) if callable(absent) else absent
            try:
                return method(self, *words, **named)
            except Refused:
                return codes.UNSUPPORTED
            except McError as e:
                return codes.of_error(e)
            except (OverflowError, ctypes.ArgumentError) as e:
                raise TypeError(f'{method.__name__}: {e}') from None
        return call
    return wrap


def each(keys: Sequence[Any]) -> List[int]:
    """A code for each key: it is not set up."""
    return [codes.NOT_SET_UP] * len(keys)


def span(address: int, size: int) -> Span:
    """Memory by address."""
    return Span(address, size, None)


def bytes_of(value: Any) -> int:
    """Of a view, a span, or a list of these."""
    if isinstance(value, list):
        return sum(map(bytes_of, value))
    return value.nbytes if isinstance(value, memoryview) else value.bytes


def spans(addresses: Sequence[int], sizes: Sequence[int]) -> List[Span]:
    """The same of several."""
    return [Span(address, size, None) for address, size in zip(addresses, sizes)]


def of_get(code: int, key: Key) -> int:
    """Of a read or a removal: what cannot be stored is not there."""
    return codes.of(code) if storable(key) else codes.ABSENT
