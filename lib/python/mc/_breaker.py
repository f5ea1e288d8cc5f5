"""Does without a pool that does not answer: after two failures in a row, a second without calls.

Thread: any.
"""
from __future__ import annotations

import logging
import time
from typing import Callable

from .errors import Code

_AFTER, _PAUSE = 2, 1.0
_log = logging.getLogger('mc')


def gone(code: int) -> bool:
    """Whether it says that the pool did not answer."""
    return code in (Code.TIMEOUT, Code.UNAVAILABLE)


class Breaker:
    """Of one client. `what` does without the pool at `master`."""

    def __init__(self, what: str, master: str,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._what, self._master, self._clock = what, master, clock
        self._failures = 0
        self._not_before = 0.0

    @property
    def open(self) -> bool:
        """Whether not to call now."""
        return self._clock() < self._not_before

    def note(self, failed: bool) -> bool:
        """Of a call that ended. Whether calls that wait should be given up."""
        if not failed:
            self._failures = 0
            return False
        self._failures += 1
        if self._failures < _AFTER:
            return False
        if not self.open:
            _log.warning('mc: the pool at %s does not answer; %s does without it', self._master,
                         self._what)
        self._not_before = self._clock() + _PAUSE
        return True
