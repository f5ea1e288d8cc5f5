"""How one call goes: a timeout of its own, and progress while its bytes move."""
from __future__ import annotations

import contextlib
import ctypes
import time
from threading import get_ident
from typing import Any, Callable, List, Optional

from ._abi import lib, mc_call_options, mc_each_progress
from ._options import milliseconds

Progress = Callable[[int, int], object]  # bytes that have moved, and all of them
Seconds = Optional[float]  # None: as the store's option `timeout`

_AS_EVER = contextlib.nullcontext()
_LEAST = 0.001
_set: 'dict[int, Limits]' = {}  # by thread; left behind where a signal's handler raised
_reporting: 'set[int]' = set()  # threads in a call's progress


class Limits:
    """Of the calls that this thread begins within it. What `progress` raises ends the call, and is
    raised at the end. Kept until the calls have ended."""

    def __init__(self, timeout: Seconds, progress: Optional[Progress]) -> None:
        _check(timeout)
        self._errors: List[BaseException] = []
        errors = self._errors

        def tell(_: Any, done: int, total: int) -> int:
            assert progress is not None
            try:
                _reporting.add(get_ident())
                if not errors:
                    progress(done, total)
            except BaseException as e:  # as the interrupt of a user
                errors.append(e)
            finally:
                _reporting.discard(get_ident())
            return len(errors)

        self._native = mc_call_options(
            ctypes.sizeof(mc_call_options), 0 if timeout is None else milliseconds(timeout),
            mc_each_progress() if progress is None else mc_each_progress(tell))

    def __enter__(self) -> None:
        _set[get_ident()] = self
        lib.mc_call_with(self._native)

    def __exit__(self, *_: object) -> None:
        lib.mc_call_with(None)
        _set.pop(get_ident(), None)
        if self._errors:
            raise self._errors[0]


def limited(timeout: Seconds, progress: Optional[Progress] = None) -> Any:
    """A context for calls; that of the store's own options costs nothing."""
    if timeout is None and progress is None:
        if _set and get_ident() in _set and get_ident() not in _reporting:  # left behind
            lib.mc_call_with(None)
            _set.pop(get_ident(), None)
        return _AS_EVER
    return Limits(timeout, progress)


def _check(timeout: Seconds) -> None:
    if timeout is not None and not timeout > 0:
        raise ValueError(f'timeout {timeout}: every call must end, so it must be above 0')


def deadline(timeout: Seconds) -> Seconds:
    """When it will be over, for `left`."""
    _check(timeout)
    return None if timeout is None else time.monotonic() + timeout


def left(until: Seconds) -> Seconds:
    """What is left until then, for a call of several."""
    return None if until is None else max(until - time.monotonic(), _LEAST)
