"""The store for asyncio.

    async with mc.aio.Store('127.0.0.1:5550') as s:
        await s.put('a', array)
        done, failed = await s.get_many_into(items, wait=0.5)      # items fail one by one

Calls go through one queue, whose descriptor the loop watches: no threads of Python. A task that is
cancelled cancels its call and waits until the call no longer touches memory; `list` and
`remove_prefix` end before their next thousand keys. A get that waits keeps no other call waiting,
and calls beyond those that run wait for their turn, within their timeouts; more than 1,048,576 at
once are `Busy`. `close` alone runs on a thread of the loop's executor. Use a store on the loop that
opened it.

`timeout` and `progress` are as in `mc.store`; the loop calls the function.
"""
from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from typing import Any, Callable, Iterable, List, Mapping, Optional, Sequence

from . import store as _sync
from ._asks import HealthOf, Keys, Match, MatchBlocks, Remove, RemovePrefix, Size
from ._calls import Call, ExistsKeys, GetKeys, PutKeys
from ._limits import Progress, Seconds, deadline, left, limited
from ._pack import Key, Results, decode
from .blocks import HASH_BYTES, GetBlocks, Hashes, KvLayout, PutBlocks, Region
from .buffers import fresh_span
from .engine import Memory
from .errors import Busy, Code, Invalid, NotFound, Put, Result, Unavailable, error
from .options import PutOptions
from .queue import Flight

Divided = tuple[dict[Key, int], dict[Key, Code]]
_WHY = 'this item failed'
_AT_ONCE = 256  # values of one get_many, whose memory is all there at once
_DEPTH = 1 << 20  # calls: as many as a queue can have


class _Told:
    """Progress of a call of the queue, for a function on the loop."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._loop = progress, asyncio.get_running_loop()
        self.error: Optional[BaseException] = None
        self.end: Callable[[], None] = lambda: None

    def __call__(self, done: int, total: int) -> None:
        self._loop.call_soon_threadsafe(self._tell, done, total)

    def _tell(self, done: int, total: int) -> None:
        if self.error is not None:
            return
        try:
            self._progress(done, total)
        except BaseException as e:
            self.error = e
            self.end()


class Store:
    """As `mc.Store`, whose options it takes; `sync` is that store."""

    def __init__(self, master: str = '127.0.0.1:5550', name: Optional[str] = None,
                 **options: Any) -> None:
        self.sync = _sync.Store(master, name, **options)
        self._queue = self.sync.queue(depth=_DEPTH)
        fd = os.dup(self._queue.fileno())  # the loop's: the queue may be closed beneath it
        self._fd, self._close_fd = fd, weakref.finalize(self, os.close, fd)
        lost = weakref.WeakMethod(self._lost)
        self._queue._when_closed(lambda left: (lost() or _nobody)(left))
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._closing: Optional['asyncio.Task[None]'] = None

    async def __aenter__(self) -> 'Store':
        self._watch()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            loop.add_reader(self._fd, self._take)
        elif self._loop is not loop:
            raise RuntimeError('this store belongs to another loop: open one for each')

    def _take(self) -> None:
        try:
            taken = self._queue.take()
        except Invalid:  # it is being closed
            return self._unwatch()
        for flight in taken:
            if not flight.context.done():
                flight.context.set_result(None)

    def _lost(self, left: List[Flight]) -> None:
        """The queue is closed, by `close` or with the store beneath; on any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed too
                self._loop.call_soon_threadsafe(self._give_up, left)

    def _give_up(self, left: List[Flight]) -> None:
        self._unwatch()
        for flight in left:
            if not flight.context.done():
                flight.context.set_exception(Unavailable('the store was closed'))

    def _unwatch(self) -> None:
        if self._loop is not None and self._close_fd.alive:
            self._loop.remove_reader(self._fd)
        self._close_fd()

    async def _run(self, call: Call, timeout: Seconds = None,
                   progress: Optional[Progress] = None) -> Any:
        """Begins the call and waits for it, also when the task is cancelled meanwhile."""
        if self._closing is not None:
            raise Invalid(f'store {self.sync.name} is closed')
        self._watch()
        ended = asyncio.get_running_loop().create_future()
        told = None if progress is None else _Told(progress)
        call.limits = limited(timeout, told)
        flight = self._queue.begin(call, ended)

        def cancel() -> None:
            with contextlib.suppress(Invalid):  # it is being closed, which ends the call
                self._queue.cancel(flight)

        if told is not None:
            told.end = cancel
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            cancel()
            await _ended(ended)
            raise
        if told is not None and told.error is not None:
            raise told.error
        return flight.result()

    # ---- one value

    async def put(self, key: Key, value: Any, options: Optional[PutOptions] = None, *,
                  timeout: Seconds = None, progress: Optional[Progress] = None) -> Put:
        """As `mc.Store.put`."""
        call = PutKeys([key], [value], options)
        done: Result = (await self._run(call, timeout, progress))[key]
        _check(done, key)
        assert done.outcome is not None
        return done.outcome

    async def get(self, key: Key, *, timeout: Seconds = None,
                  progress: Optional[Progress] = None) -> bytes:
        """As `mc.Store.get`."""
        until = deadline(timeout)
        for last in (False, False, True):
            size = await self.size(key, timeout=left(until))
            value, place = fresh_span(size)
            call = GetKeys([key], [place])
            done: Result = (await self._run(call, left(until), progress))[key]
            if last or done.code is not Code.NO_SPACE:  # a larger one took its place
                break
        _check(done, key)
        return value if done.bytes == size else value[:done.bytes]

    async def get_into(self, key: Key, into: Any, wait: float = 0.0, *,
                       timeout: Seconds = None,
                       progress: Optional[Progress] = None) -> int:
        """As `mc.Store.get_into`; waits up to `wait` seconds for a value that is not stored yet."""
        call = GetKeys([key], [into], wait)
        done: Result = (await self._run(call, timeout, progress))[key]
        _check(done, key)
        return done.bytes

    async def exists(self, key: Key, *, timeout: Seconds = None) -> bool:
        """As `mc.Store.exists`."""
        return (await self.exists_many([key], timeout=timeout))[0]

    # ---- many values

    async def put_many(self, items: Mapping[Key, Any], options: Optional[PutOptions] = None, *,
                       timeout: Seconds = None,
                       progress: Optional[Progress] = None) -> Divided:
        """Stores each value. Returns what is stored, with its bytes, and the code of each that
        failed."""
        call = PutKeys(list(items), items.values(), options)
        return _divided(await self._run(call, timeout, progress))

    async def get_many_into(self, items: Mapping[Key, Any], wait: float = 0.0, *,
                            timeout: Seconds = None,
                            progress: Optional[Progress] = None) -> Divided:
        """Fills buffers. Returns what was got, with its bytes, and the code of each that failed."""
        call = GetKeys(list(items), items.values(), wait)
        return _divided(await self._run(call, timeout, progress))

    async def get_many(self, keys: Iterable[Key], *, timeout: Seconds = None) -> dict[Key, bytes]:
        """The values that are there, by key, all at once."""
        names = list(dict.fromkeys(keys))
        gate, until = asyncio.Semaphore(_AT_ONCE), deadline(timeout)
        values = await asyncio.gather(*(self._get_or_none(key, gate, until) for key in names))
        return {key: value for key, value in zip(names, values) if value is not None}

    async def _get_or_none(self, key: Key, gate: asyncio.Semaphore,
                           until: Seconds) -> Optional[bytes]:
        async with gate:
            try:
                return await self.get(key, timeout=left(until))
            except NotFound:
                return None

    async def exists_many(self, keys: Sequence[Key], *, timeout: Seconds = None) -> List[bool]:
        """As `mc.Store.exists_many`."""
        found: List[bool] = await self._run(ExistsKeys(keys), timeout)
        return found

    # ---- blocks of a KV cache

    async def put_blocks(self, layout: KvLayout, prefix: Key, hashes: Hashes, blocks: Any, *,
                         regions: tuple[int, int] = (0, 0), hash_bytes: int = HASH_BYTES,
                         options: Optional[PutOptions] = None, timeout: Seconds = None,
                         progress: Optional[Progress] = None) -> Results:
        """As `mc.Store.put_blocks`."""
        call = PutBlocks(layout, prefix, hashes, blocks, regions, hash_bytes)
        call.options = options
        done: Results = await self._run(call, timeout, progress)
        return done

    async def get_blocks(self, layout: KvLayout, prefix: Key, hashes: Hashes, blocks: Any, *,
                         regions: tuple[int, int] = (0, 0), wait: float = 0.0,
                         hash_bytes: int = HASH_BYTES, timeout: Seconds = None,
                         progress: Optional[Progress] = None) -> Results:
        """As `mc.Store.get_blocks`."""
        call = GetBlocks(layout, prefix, hashes, blocks, regions, hash_bytes)
        call.wait = wait
        done: Results = await self._run(call, timeout, progress)
        return done

    async def match_blocks(self, prefixes: Sequence[Key], hashes: Hashes,
                           hash_bytes: int = HASH_BYTES, *, timeout: Seconds = None) -> int:
        """As `mc.Store.match_blocks`."""
        found: int = await self._run(MatchBlocks(prefixes, hashes, hash_bytes), timeout)
        return found

    def layout(self, regions: Sequence[Region], blocks: int) -> KvLayout:
        """As `mc.Store.layout`."""
        return self.sync.layout(regions, blocks)

    def register(self, thing: Any) -> Memory:
        """As `mc.Store.register`."""
        return self.sync.register(thing)

    # ---- what is short, and waits for the master

    async def size(self, key: Key, *, timeout: Seconds = None) -> int:
        """As `mc.Store.size`."""
        try:
            size: int = await self._run(Size(key), timeout)
        except NotFound as e:
            raise error(Code.NOT_FOUND, f'{_WHY}: {key!r}') from e
        return size

    async def remove(self, key: Key, force: bool = False, *, timeout: Seconds = None) -> None:
        """As `mc.Store.remove`."""
        done: Result = (await self._run(Remove([key], force), timeout))[key]
        _check(done, key)

    async def remove_many(self, keys: Sequence[Key], force: bool = False, *,
                          timeout: Seconds = None) -> dict[Key, Result]:
        """As `mc.Store.remove_many`."""
        done: dict[Key, Result] = await self._run(Remove(keys, force), timeout)
        return done

    async def remove_prefix(self, prefix: Key, force: bool = False, *,
                            timeout: Seconds = None) -> int:
        """As `mc.Store.remove_prefix`."""
        call = RemovePrefix(prefix, force)
        try:
            removed: int = await self._run(call, timeout)
        except Busy as e:
            setattr(e, 'removed', call.result())
            raise
        return removed

    async def match_prefix(self, keys: Sequence[Key], *, timeout: Seconds = None) -> int:
        """As `mc.Store.match_prefix`."""
        found: int = await self._run(Match(keys), timeout)
        return found

    async def list(self, prefix: Key = '', limit: Optional[int] = None, *,
                   timeout: Seconds = None) -> List[_sync.Listed]:
        """As `mc.Store.list`."""
        if limit == 0:
            return []
        found = await self._run(Keys(prefix, limit), timeout)
        return [_sync.Listed(decode(key), size) for key, size in found]

    async def health(self, timeout: float = 1.0) -> _sync.Health:
        """As `mc.Store.health`."""
        return _sync.Health(*await self._run(HealthOf(timeout)))

    async def close(self) -> None:
        """Cancels calls that have not begun and waits for the rest; their tasks get
        `Unavailable`. It goes on when the task that waits for it is cancelled."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        loop = asyncio.get_running_loop()
        self._unwatch()
        await _ended(loop.run_in_executor(None, self._queue.close))
        await _ended(loop.run_in_executor(None, self.sync.close))


async def _ended(future: 'asyncio.Future[Any]') -> None:
    """Until it is done, however often the task is cancelled."""
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            continue
        except Unavailable:
            return


def _nobody(_: List[Flight]) -> None:
    """In the place of a store that was collected."""


def _check(done: Result, key: Key) -> None:
    if done.code is not Code.OK:
        raise error(done.code, f'{_WHY}: {key!r}')


def _divided(results: Mapping[Key, Result]) -> Divided:
    done = {key: r.bytes for key, r in results.items() if r.ok}
    return done, {key: r.code for key, r in results.items() if not r.ok}
