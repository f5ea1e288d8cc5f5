"""What the library opened for us: who is using it, and when it is closed.

Every object of the package that stands for one of the library's has a `Handle`. A call enters it,
so that `close()` in another thread waits for the call. What belongs to another handle (memory to
its engine) is closed before it. After fork the child's handles refuse calls and close nothing.

A signal's handler may raise between any two steps of Python. So what is in use is counted by
CPython itself: a user has a view of a bytearray, which ends when the view is released or collected,
and a bytearray that has views cannot be resized.
"""
from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import defaultdict
from functools import partial
from threading import get_ident
from typing import Any, Callable, Iterable, Optional

from .errors import Invalid, Unsupported

# How long the end of the interpreter waits for calls of other threads. Values of offered memory are
# moved away behind that for as long as its `drain` says.
EXIT_SECONDS = 2.0
_FIRST_PAUSE, _LAST_PAUSE = 0.00002, 0.005  # between looks whether calls have ended

_open: 'weakref.WeakSet[Handle]' = weakref.WeakSet()
_forks = 0


def _nothing() -> None:
    pass


def _in_use(gate: bytearray) -> bool:
    """Whether it has views."""
    try:
        gate.append(0)
        del gate[1:]
    except BufferError:
        return True
    return False


class Handle:
    """A pointer of the library. `with handle as pointer:` is a call on it. `free` is a function
    that is no Python's: nothing comes between its begin and its end."""

    def __init__(self, what: str, pointer: int, free: Callable[[int], object],
                 parent: Optional['Handle'] = None, keep: Any = None, first: bool = False,
                 postpones: bool = False) -> None:
        self.what = what
        self.keep = keep  # what the library uses until it is freed
        self.first = first  # closed before the parent's other children: it uses them
        # Whether `close` returns while it is pinned, and the last pin frees it. Else it waits.
        self._postpones = postpones
        # Called when there is a limit of time: False if freeing would wait for longer.
        self.settle: Callable[[float], bool] = lambda seconds: True
        self.wake: Callable[[], object] = _nothing  # those who wait in a call, so that it ends
        self.after: Callable[[], object] = _nothing  # it is freed
        self.forget: Callable[[], object] = _nothing  # its owner, whose end closes it
        self.pointer = pointer
        self._once = map(free, (pointer,))  # its first step frees, its second does nothing
        self._freeing = threading.RLock()
        self._parent = parent
        self._children: Optional['weakref.WeakSet[Handle]'] = None  # until there is one
        self._lock = threading.RLock()
        # Views of the calls of each thread, and of those who use it for longer.
        self._calls: 'defaultdict[int, bytearray]' = defaultdict(partial(bytearray, 1))
        self._pins = bytearray(1)
        self._closed = False
        self._freed = False
        self._over = False  # all of `close` is done
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

    def _disown(self, child: 'Handle') -> None:
        with self._lock:
            if self._children is not None:
                self._children.discard(child)

    @property
    def closed(self) -> bool:
        """Whether it is closed, or belongs to the process that this one was forked from."""
        return self._closed or self._forks != _forks

    def check(self) -> None:
        """Raises when it is closed."""
        if self._forks != _forks:
            raise Unsupported(f'{self.what}: not after fork: open it in the child')
        if self._closed:
            raise Invalid(f'{self.what} is closed')

    def __enter__(self) -> int:
        if self._closed or self._forks != _forks:
            self.check()
        return self.pointer

    # `with` looks this up before it calls __enter__. The view is counted from here on.
    @property
    def __exit__(self) -> Callable[..., None]:
        return memoryview(self._calls[get_ident()]).__exit__

    def used(self) -> memoryview:
        """A call of this thread, until that is released."""
        view = memoryview(self._calls[get_ident()])
        if self._closed or self._forks != _forks:  # no function: it may raise, and who keeps the
            view.release()                         # exception keeps this frame
            self.check()
        return view

    def pin(self) -> memoryview:
        """It stays until that is released, and `free_unpinned` called."""
        view = memoryview(self._pins)
        if self._closed or self._forks != _forks:  # as above
            view.release()
            self.check()
        return view

    def free_unpinned(self) -> None:
        """Frees what was closed while it was pinned, unless others pin it still."""
        if self._closed and not self._freed:
            with contextlib.suppress(Invalid):  # a call of this thread on its parent
                self.close(0)
                if self._freed and self._parent is not None:
                    self._parent.free_unpinned()

    def close(self, seconds: Optional[float] = None) -> bool:
        """Waits for the calls on it, then frees it. False: `seconds` were over before; it stays.
        `Invalid` within a call of this thread on it, as from its progress: it would wait for
        itself."""
        if self._over or self._forks != _forks:
            return True
        if self._called_here():
            raise Invalid(f'{self.what} cannot be closed: a call of this thread on it is under way')
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._lock:
            self._closed = True
        if not self._ended(deadline):
            return False
        children = self._belongings()
        for child in children:
            if not child.close(_left(deadline)):
                return False
        if _in_use(self._pins) or not all(child._freed for child in children):
            return True  # the last pin frees it
        if deadline is not None and not self.settle(max(deadline - time.monotonic(), 0)):
            return False
        with self._freeing:
            self._freed = True
            next(self._once, None)
        self.keep = None
        self.after()
        self._over = True
        # Nothing is left to do when it is collected: what a handler raises there is not heard.
        self.forget()
        if self._parent is not None:
            self._parent._disown(self)
        return True

    def _belongings(self) -> 'list[Handle]':
        with self._lock:
            return sorted(self._children or (), key=lambda child: not child.first)

    def _called_here(self) -> bool:
        return _in_use(self._calls[get_ident()]) or any(
            child._called_here() for child in self._belongings())

    def _ended(self, deadline: Optional[float]) -> bool:
        """Waits for calls of other threads."""
        pause = _FIRST_PAUSE
        while any(map(_in_use, tuple(self._calls.values()))) or (
                not self._postpones and _in_use(self._pins)):
            if deadline is not None and time.monotonic() >= deadline:
                return False
            with self._freeing:
                if not self._freed:
                    self.wake()
            time.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)
        return True


def _left(deadline: Optional[float]) -> Optional[float]:
    return None if deadline is None else max(deadline - time.monotonic(), 0)


def using(handles: Iterable[Handle], call: Callable[..., Any], *arguments: Any) -> Any:
    """The call, which uses these too."""
    views: list[memoryview] = []
    try:
        for handle in handles:
            views.append(handle.used())
        return call(*arguments)
    finally:
        views.clear()


class Pins:
    """Handles that are in use for longer than a call."""

    __slots__ = ('_views',)

    def __init__(self) -> None:
        self._views: dict[Handle, memoryview] = {}

    def add(self, *handles: Handle) -> None:
        """These too."""
        for handle in handles:
            if handle not in self._views:
                self._views[handle] = handle.pin()

    def release(self) -> None:
        """They are not in use any more. Once more: nothing."""
        handles = list(self._views)
        self._views.clear()
        for handle in handles:
            handle.free_unpinned()


def close_with(owner: object, handle: Handle) -> None:
    """Closes the handle when its owner is collected, if nobody did before."""
    finalizer = weakref.finalize(owner, handle.close)
    finalizer.atexit = False
    handle.forget = finalizer.detach


def _after_fork() -> None:
    global _forks
    _forks += 1


def _at_exit() -> None:
    deadline = time.monotonic() + EXIT_SECONDS
    for handle in list(_open):
        with contextlib.suppress(Invalid):
            handle.close(max(deadline - time.monotonic(), 0))


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
