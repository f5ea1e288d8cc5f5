"""Asks the pool how many blocks it has, and never keeps the engine core waiting for it.

The asking thread itself waits `quick` seconds, so that an answer that is soon there costs no change
of threads. For one that is not a thread beside asks again; until `patience` the scheduler asks
again; then the answer is 0. When answers were late three times, the next second has no questions.
Thread: ask() by one thread; match() by that one and another, which belongs to Lookups.
"""
from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

_LATE = 3
_PAUSE = 1.0
_WAITING = 64


class Match(Protocol):
    """The leading blocks stored under all prefixes. None: no answer `within` so many seconds."""

    def __call__(self, prefixes: Sequence[bytes], hashes: bytes, count: int,
                 within: float = 0.0) -> int | None: ...


class _Question:
    def __init__(self, prefixes: Sequence[bytes], hashes: bytes, count: int,
                 now: float) -> None:
        self.prefixes, self.hashes, self.count, self.begun = prefixes, hashes, count, now
        self.answer: int | None = None
        self.wrong = False  # the pool could not be asked
        self.unwanted = False
        self.done = threading.Event()


class Lookups:
    """`quick` 0: the asking thread never waits."""

    def __init__(
        self,
        match: Match,
        patience: float,
        observe: Callable[[str, float], None],
        quick: float = 0.002,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._match, self._patience, self._observe = match, patience, observe
        self._quick, self._clock = quick, clock
        self._open: dict[str, _Question] = {}
        self._queue: deque[_Question] = deque()
        self._some = threading.Condition()
        self._stop = False
        self._late = 0
        self._not_before = 0.0
        self._thread = threading.Thread(target=self._run, name='mc-lookup', daemon=True)
        self._thread.start()

    def ask(self, key: str, prefixes: Sequence[bytes], hashes: bytes, count: int) -> int | None:
        """`key` names the request; the same question must come with it until it is answered."""
        now = self._clock()
        question = self._open.get(key)
        if question is not None and (question.hashes != hashes or question.prefixes != prefixes):
            self.forget(key)
            question = None
        if question is None:
            if now < self._not_before or len(self._queue) >= _WAITING:
                self._observe('skipped', 0.0)
                return 0
            if not self._open and self._quick:
                found = self._at_once(prefixes, hashes, count, now)
                if found is not None:
                    return found
            question = _Question(prefixes, hashes, count, now)
            self._open[key] = question
            with self._some:
                self._queue.append(question)
                self._some.notify()
        if question.done.is_set():
            del self._open[key]
            if question.wrong:
                self._was_late(now)
                return 0
            self._late = 0
            return question.answer or 0
        if self._clock() - question.begun < self._patience:
            return None
        self.forget(key)
        self._was_late(now)
        return 0

    def _at_once(self, prefixes: Sequence[bytes], hashes: bytes, count: int,
                 now: float) -> int | None:
        """None: not soon enough. Not tried while earlier questions wait: the pool is slow now."""
        try:
            found = self._match(prefixes, hashes, count, self._quick)
        except Exception:  # a lookup that fails is a miss
            self._observe('failed-lookup', 0.0)
            self._was_late(now)
            return 0
        if found is not None:
            self._late = 0
            self._observe('lookup', self._clock() - now)
        return found

    def forget(self, key: str) -> None:
        """The request has ended."""
        question = self._open.pop(key, None)
        if question is not None:
            question.unwanted = True

    def close(self, wait: float) -> None:
        """Waits for a question under way, at most so many seconds."""
        with self._some:
            self._stop = True
            self._some.notify()
        self._thread.join(wait)

    def _was_late(self, now: float) -> None:
        self._late += 1
        self._observe('late', 0.0)
        if self._late >= _LATE:
            self._not_before = now + _PAUSE

    def _run(self) -> None:
        while True:
            with self._some:
                while not self._queue and not self._stop:
                    self._some.wait()
                if self._stop:
                    return
                question = self._queue.popleft()
            if question.unwanted:
                continue
            try:
                question.answer = self._match(question.prefixes, question.hashes, question.count)
                self._observe('lookup', self._clock() - question.begun)
            except Exception:  # a lookup that fails is a miss
                question.wrong = True
                self._observe('failed-lookup', 0.0)
            question.done.set()
