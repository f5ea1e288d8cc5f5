"""What the library opened for us: who is using it, and when it is closed.

Every object of the package that stands for one of the library's has a `Handle`. A call enters it,
so that `close()` in another thread waits for the call. What belongs to another handle (memory to
its engine) is closed before it. After fork the child's handles refuse calls and close nothing.
"""
from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from typing import Any, Callable, Optional

from .errors import Invalid, Unsupported

# How long the end of the interpreter waits for calls of other threads. Values of offered memory are
# moved away behind that for as long as its `drain` says.
EXIT_SECONDS = 2.0

_open: 'weakref.WeakSet[Handle]' = weakref.WeakSet()
_forks = 0


class Handle:
    """A pointer of the library. `with handle as pointer:` is a call on it."""

    def __init__(self, what: str, pointer: int, free: Callable[[int], None],
                 parent: Optional['Handle'] = None, keep: Any = None, first: bool = False) -> None:
        self.what = what
        self.keep = keep  # what the library uses until it is freed
        self.first = first  # closed before the parent's other children: it uses them
        # Called when there is a limit of time: False if freeing would wait for longer.
        self.settle: Callable[[float], bool] = lambda seconds: True
        self.pointer = pointer
        self._free = free
        self._parent = parent
        self._children: Optional['weakref.WeakSet[Handle]'] = None  # until there is one
        self._lock = threading.Lock()
        self._idle: Optional[threading.Condition] = None  # until `close` waits
        self._users = 0
        self._closed = False
        self._freed = False
        self._forks = _forks
        if parent is None:
            _open.add(self)
        else:
            parent._adopt(self)

    def _adopt(self, child: 'Handle') -> None:
        with self._lock:
            if not self._closed:
                if self._children is None:
                    self._children = weakref.WeakSet()
                self._children.add(child)
                return
        child.close()
        raise Invalid(f'{self.what} is closed')

    @property
    def closed(self) -> bool:
        """Whether it is closed, or belongs to the process that this one was forked from."""
        return self._closed or self._forks != _forks

    def check(self) -> None:
        """Raises when it is closed."""
        if self._forks != _forks or self._closed:
            with self:
                pass

    def __enter__(self) -> int:
        if self._forks != _forks:
            raise Unsupported(f'{self.what}: not after fork: open it in the child')
        with self._lock:
            if self._closed:
                raise Invalid(f'{self.what} is closed')
            self._users += 1
        return self.pointer

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._idle is not None and not self._users:
                self._idle.notify_all()

    def close(self, seconds: Optional[float] = None) -> bool:
        """Waits for the calls on it, then frees it. False: `seconds` were over before; it stays."""
        if self._forks != _forks:
            return True
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._lock:
            self._closed = True
            if self._users:
                if self._idle is None:
                    self._idle = threading.Condition(self._lock)
                left = None if deadline is None else max(deadline - time.monotonic(), 0)
                if not self._idle.wait_for(lambda: not self._users, left):
                    return False
            children = sorted(self._children or (), key=lambda child: not child.first)
        for child in children:
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            if not child.close(left):
                return False
        if deadline is not None and not self.settle(max(deadline - time.monotonic(), 0)):
            return False
        with self._lock:
            freed, self._freed = self._freed, True
        if not freed:
            self._free(self.pointer)
            self.keep = None
        return True


def close_with(owner: object, handle: Handle) -> None:
    """Closes the handle when its owner is collected, if nobody did before."""
    weakref.finalize(owner, handle.close).atexit = False


def _after_fork() -> None:
    global _forks
    _forks += 1


def _at_exit() -> None:
    deadline = time.monotonic() + EXIT_SECONDS
    for handle in list(_open):
        handle.close(max(deadline - time.monotonic(), 0))


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
