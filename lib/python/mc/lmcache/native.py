"""A client for LMCache's multi-process server: `--l2-adapter '{"type": "native_plugin", ...}'`.

LMCache submits batches from any of its threads, polls `event_fd()` and drains completions on
another one. Whatever the pool does, every batch is completed: one that fails, or that would have
to wait behind two that did, is completed as failed, which is a miss to LMCache.
Thread: any, but for `drain_completions` and `close`, which are called by one.
"""
from __future__ import annotations

import contextlib
import itertools
import os
import select
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Optional, Sequence

from mc._breaker import Breaker, gone
from mc._calls import Call, GetKeys, PutKeys
from mc._client import need_namespace, open_store, parse
from mc._mappings import Mappings
from mc.buffers import Span, span
from mc.errors import CODES, Code, McError, Put, Unavailable
from mc.queue import Flight

_THREADS = 4
_PAUSED = 'the pool did not answer a moment ago'
_WHERE = "adapter_params of mc.lmcache's McClient"

Completion = tuple[int, bool, str, Optional[list[bool]]]


class _Batch(NamedTuple):
    number: int
    kind: str  # get, set, exists
    count: int
    sizes: tuple[int, ...]
    begun: float


class McClient:
    """What LMCache's NativeConnectorL2Adapter wraps. Parameters are `adapter_params`."""

    def __init__(self, **params: Any) -> None:
        settings = parse(params, _WHERE)
        self._prefix = f'lmcache:{need_namespace(settings, _WHERE)}/'
        self._timeout = settings.timeout
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._ended: deque[Completion] = deque()
        self._breaker = Breaker('LMCache', settings.master)
        self._closed = False
        self._store = open_store(settings, 'lmcache')
        self._queue = self._store.queue(_THREADS)
        self._seen = Mappings(self._store) if settings.register else None
        self._beside = ThreadPoolExecutor(_THREADS, thread_name_prefix='mc-lmcache')
        # One descriptor for both: what the queue has done, and what never got there.
        self._own = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._both = select.epoll(flags=select.EPOLL_CLOEXEC)
        self._both.register(self._queue.fileno(), select.EPOLLIN)
        self._both.register(self._own, select.EPOLLIN)

    # ---- what LMCache calls

    def event_fd(self) -> int:
        """Readable while completions wait. Only poll it."""
        return self._both.fileno()

    def submit_batch_get(self, keys: Sequence[str], views: Sequence[Any]) -> int:
        """Fills each view; a key whose value has another size is one that is not there."""
        return self._submit('get', keys, [span(view, writable=True) for view in views])

    def submit_batch_set(self, keys: Sequence[str], views: Sequence[Any]) -> int:
        """Stores each view; what is there is kept."""
        return self._submit('set', keys, [span(view) for view in views])

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        """Which of them are there. Those before the first that is not are leased: they stay until
        they are loaded, or until the master's `--lease-ttl` has passed."""
        batch = _Batch(next(self._numbers), 'exists', len(keys), (), time.monotonic())
        if self._breaker.open:
            self._refuse(batch, _PAUSED)
            return batch.number
        looking = self._beside.submit(self._look, batch, self._names(keys))
        looking.add_done_callback(lambda done: self._looked(batch, done))
        return batch.number

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        """Removes them, but for what is being read."""
        number = next(self._numbers)
        names = self._names(keys)
        removing = self._beside.submit(self._store.remove_many, names)
        removing.add_done_callback(lambda done: self._removed(number, names, done))
        return number

    def drain_completions(self) -> list[Completion]:
        """What has ended: the number of the batch, whether all of it succeeded, why not, and
        whether each key did."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._own)
        out = [self._completion(flight) for flight in self._queue.take()]
        self._give_up_old()
        with self._lock:
            out += self._ended
            self._ended.clear()
        return out

    def close(self) -> None:
        """Waits for what flies, which the timeout bounds. Again: nothing."""
        if self._closed:
            return
        self._closed = True
        self._beside.shutdown(wait=True, cancel_futures=True)
        for flight in self._queue.flights():
            self._queue.cancel(flight)
        self._queue.close()
        if self._seen is not None:
            self._seen.close()
        self._store.close()
        self._both.close()
        os.close(self._own)

    # ---- beneath

    def _names(self, keys: Sequence[str]) -> list[str]:
        return [self._prefix + key for key in keys]

    def _submit(self, kind: str, keys: Sequence[str], views: list[Span]) -> int:
        now = time.monotonic()
        batch = _Batch(next(self._numbers), kind, len(keys), tuple(v.bytes for v in views), now)
        if self._breaker.open:
            self._refuse(batch, _PAUSED)
            return batch.number
        names = self._names(keys)
        call: Call
        try:
            if self._seen is not None:
                self._seen.see(views)
            if kind == 'get':
                call = GetKeys(names, views)
            else:
                call = PutKeys(names, views)
            self._queue.begin(call, batch)
        except McError as e:
            self._refuse(batch, str(e))
        return batch.number

    def _refuse(self, batch: _Batch, why: str) -> None:
        with self._lock:
            self._ended.append((batch.number, False, why, self._none(batch)))
        with contextlib.suppress(OSError):  # closed meanwhile
            os.eventfd_write(self._own, 1)

    @staticmethod
    def _none(batch: _Batch) -> Optional[list[bool]]:
        return None if batch.kind == 'set' else [False] * batch.count

    def _look(self, batch: _Batch, names: Sequence[str]) -> list[bool]:
        """On a thread beside."""
        if self._breaker.open or time.monotonic() - batch.begun > self._timeout:
            raise Unavailable(_PAUSED)
        count = self._store.match_prefix(names)
        beyond = names[count + 1:]
        found = self._store.exists_many(beyond) if beyond else []
        return [True] * count + [False] * (count < len(names)) + found

    def _looked(self, batch: _Batch, done: 'Future[list[bool]]') -> None:
        try:
            each = done.result()
        except BaseException as e:  # also when it was cancelled
            self._refuse(batch, f'{e}: exists')
            if isinstance(e, McError):
                self._note(gone(e.code))
            return
        self._note(False)
        with self._lock:
            self._ended.append((batch.number, True, '', each))
        with contextlib.suppress(OSError):  # closed meanwhile
            os.eventfd_write(self._own, 1)

    def _removed(self, number: int, names: Sequence[str], done: 'Future[Any]') -> None:
        try:
            results = done.result()
            each = [results[name].code in (Code.OK, Code.NOT_FOUND) for name in names]
            why = '' if all(each) else 'some are being read'
        except BaseException as e:  # also when it was cancelled
            each, why = [False] * len(names), str(e)
        with self._lock:
            self._ended.append((number, all(each), why, each))
        with contextlib.suppress(OSError):  # closed meanwhile
            os.eventfd_write(self._own, 1)

    def _completion(self, flight: Flight) -> Completion:
        batch: _Batch = flight.context
        assert flight.code is not None
        if flight.code is not Code.OK:
            self._note(gone(flight.code))
            why = f'{flight.code.name.lower()}: {batch.kind}'
            return batch.number, False, why, self._none(batch)
        results = flight.call.results  # type: ignore[attr-defined]
        codes = [CODES[code] for code in results.codes]
        self._note(bool(codes) and all(map(gone, codes)))
        if batch.kind == 'get':
            each = [code is Code.OK and got == want
                    for code, got, want in zip(codes, results.bytes, batch.sizes)]
        else:
            each = [code is Code.OK and outcome != Put.NOT_ADMITTED
                    for code, outcome in zip(codes, results.flags)]
        return batch.number, all(each), self._why(codes, each), each

    @staticmethod
    def _why(codes: Sequence[Code], each: Sequence[bool]) -> str:
        if all(each):
            return ''
        names = sorted({code.name.lower().replace('_', '-') if code else 'not as wanted'
                        for code, well in zip(codes, each) if not well})
        return f'{each.count(False)} of {len(each)} keys: {", ".join(names)}'

    def _note(self, failed: bool) -> None:
        if self._breaker.note(failed):
            for flight in self._queue.flights():
                self._queue.cancel(flight)

    def _give_up_old(self) -> None:
        """Nothing that waited for a whole timeout is begun."""
        old = time.monotonic() - self._timeout
        for flight in self._queue.flights():
            if flight.context.begun < old:
                self._queue.cancel(flight)
