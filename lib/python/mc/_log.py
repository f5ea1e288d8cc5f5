"""The library's log in Python's `logging`: `use_logging`."""
from __future__ import annotations

import atexit
import logging
import os
import threading
from typing import Any, Optional

from ._abi import lib, mc_each_line

_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
_PATIENCE_MS = 1000
_END_SECONDS = 2.0

_lock = threading.Lock()
_taker: Optional['_Taker'] = None


@mc_each_line
def _pass_on(_: Any, line: Any) -> None:
    one = line.contents
    area = one.area.decode(errors='replace')
    logging.getLogger(f'mc.{area}').log(_LEVELS[min(one.level, len(_LEVELS) - 1)], '%s',
                                        one.text.decode(errors='replace'))


class _Taker(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name='mc log', daemon=True)
        self.ending = False

    def run(self) -> None:
        while not self.ending:
            lib.mc_log_take(_PATIENCE_MS, _pass_on, None)
        lib.mc_log_take(0, _pass_on, None)


def use_logging(on: bool = True) -> None:
    """From here on the library's log goes to Python's `logging`: to the logger 'mc.store' for the
    area 'store', and so on, by a thread of its own. What there is to log is the option `log_level`
    of stores and engines. False: to standard error again, as in a child of a fork."""
    global _taker
    with _lock:
        if on and _taker is None:
            lib.mc_log_keep(1)
            _taker = _Taker()
            _taker.start()
        elif not on and _taker is not None:
            taker, _taker = _taker, None
            taker.ending = True
            lib.mc_log_keep(0)  # and wakes it
            taker.join(_END_SECONDS)


def _after_fork() -> None:
    global _lock, _taker
    _lock, _taker = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)
atexit.register(use_logging, False)
