"""A remote storage plugin for LMCache in an engine's own process.

    remote_storage_plugins: ["mc"]
    extra_config:
      remote_storage_plugin.mc.module_path: mc.lmcache
      remote_storage_plugin.mc.class_name: McConnectorAdapter
      remote_storage_plugin.mc.url: "mc://127.0.0.1:5550?namespace=llama-8b-a"

A chunk is one value; with `save_chunk_meta` LMCache's header comes before it. A chunk that the pool
does not have, does not give in time, or has in another shape than was asked for, is a miss.
"""
from __future__ import annotations

import asyncio
import ctypes
from typing import Any, Callable, List, Optional, Sequence, TypeVar
from urllib.parse import parse_qsl, urlsplit

from lmcache.v1.exceptions import IrrecoverableException
from lmcache.v1.protocol import RemoteMetadata
from lmcache.v1.storage_backend.connector import ConnectorAdapter
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from mc import aio
from mc._breaker import Breaker, gone
from mc._calls import GetKeys, PutKeys
from mc._client import KNOWN, ClientSettings, need_namespace, own_client_name, parse
from mc._mappings import Mappings
from mc.buffers import span
from mc.errors import CODES, Code, McError, error

T = TypeVar('T')
_SCHEME, _PLUGIN = 'mc://', 'plugin://'


def settings_of(url: str, config: Any) -> ClientSettings:
    """Of `mc://MASTER?name=value`, or of the plugin's entries of `extra_config`."""
    extra = (config.extra_config or {}) if config is not None else {}
    given: dict[str, Any] = {}
    where = 'the url'
    if url.startswith(_PLUGIN):
        where = f'remote_storage_plugin.{url[len(_PLUGIN):]}'
        given = {name: extra[f'{where}.{name}'] for name in KNOWN if f'{where}.{name}' in extra}
        url = extra.get(f'{where}.url', '')
    if url:
        if not url.startswith(_SCHEME):
            raise ValueError(f'{where}: {url!r} does not begin with {_SCHEME}')
        parts = urlsplit(url)
        given = {'master': parts.netloc, **dict(parse_qsl(parts.query)), **given}
    settings = parse(given, where)
    need_namespace(settings, where)
    return settings


class McConnectorAdapter(ConnectorAdapter):  # type: ignore[misc]
    """Makes connectors for `mc://...` and for plugins named `mc` or `mc.INSTANCE`."""

    def __init__(self) -> None:
        super().__init__(_SCHEME)

    def can_parse(self, url: str) -> bool:
        """Whether the url is ours."""
        return url.startswith(_SCHEME) or url == f'{_PLUGIN}mc' or url.startswith(f'{_PLUGIN}mc.')

    def create_connector(self, context: Any) -> 'McConnector':
        """For an engine's process; it connects at its first call."""
        return McConnector(context.loop, context.local_cpu_backend, context.config, url=context.url,
                           metadata=context.metadata)


class McConnector(RemoteConnector):  # type: ignore[misc]
    """One client of the pool. Coroutines run on `loop`, the others on any thread."""

    def __init__(self, loop: Any, local_cpu_backend: Any, config: Any = None, *,
                 url: str = f'{_PLUGIN}mc', metadata: Any = None) -> None:
        config = local_cpu_backend.config if config is None else config
        metadata = local_cpu_backend.metadata if metadata is None else metadata
        super().__init__(config, metadata)
        try:
            settings = settings_of(url, config)
        except ValueError as e:
            raise IrrecoverableException(str(e)) from e
        self.loop, self.local_cpu_backend = loop, local_cpu_backend
        self._prefix = f'lmcache:{settings.namespace}/'
        self._aio = aio.Store(settings.master, own_client_name(settings, 'lmcache'),
                              timeout=settings.timeout, **settings.options)
        self._sync = self._aio.sync
        self._breaker = Breaker('LMCache', settings.master)
        self._seen = Mappings(self._sync) if settings.register else None

    def post_init(self) -> None:
        """Registers the memory that LMCache allocates from, where it says where it is."""
        allocator = getattr(self.local_cpu_backend, 'memory_allocator', None)
        pinned = getattr(allocator, 'pin_allocator', None)
        buffer = getattr(pinned, 'buffer', None)
        if buffer is not None and self._seen is not None:
            self._seen.see([span(buffer)])

    # ---- lookups

    async def exists(self, key: Any) -> bool:
        """Whether it is stored; False also when the pool does not answer."""
        return await asyncio.to_thread(self.exists_sync, key)

    def exists_sync(self, key: Any) -> bool:
        """The same, on this thread."""
        return self._asked(lambda: self._sync.exists(self._name(key)), False)

    def support_batched_contains(self) -> bool:
        """Yes."""
        return True

    def batched_contains(self, keys: List[Any]) -> int:
        """How many keys, from the first, are stored without a gap. They are leased."""
        return self._asked(lambda: self._sync.match_prefix(self._names(keys)), 0)

    def support_batched_async_contains(self) -> bool:
        """Yes."""
        return True

    async def batched_async_contains(self, lookup_id: str, keys: List[Any],
                                     pin: bool = False) -> int:
        """As batched_contains: the lease keeps them for a read, as a pin would."""
        return await asyncio.to_thread(self.batched_contains, keys)

    # ---- chunks out of the pool

    async def get(self, key: Any) -> Any:
        """The chunk, or None."""
        return (await self.batched_get([key]))[0]

    def support_batched_get(self) -> bool:
        """Yes."""
        return True

    async def batched_get(self, keys: List[Any]) -> List[Any]:
        """All in one call: the chunk of each key, or None."""
        out: List[Any] = [None] * len(keys)
        if self._breaker.open:
            return out
        chunks = [self.local_cpu_backend.allocate(self.meta_shapes, self.meta_dtypes, self.meta_fmt)
                  for _ in keys]
        asked = [at for at, chunk in enumerate(chunks) if chunk is not None]
        try:
            heads = {at: bytearray(self._head_bytes()) for at in asked}
            places = [[span(heads[at]), span(chunks[at].byte_array)] for at in asked]
            self._see(place[1] for place in places)
            call = GetKeys(self._names([keys[at] for at in asked]), places)
            codes, sizes = await self._run(call, len(asked))
            for at, code, size in zip(asked, codes, sizes):
                if code is Code.OK:
                    chunk, chunks[at] = chunks[at], None
                    out[at] = self._shaped(chunk, bytes(heads[at]), size)
        finally:
            for chunk in chunks:
                if chunk is not None:
                    chunk.ref_count_down()
        return out

    def support_batched_get_non_blocking(self) -> bool:
        """Yes."""
        return True

    async def batched_get_non_blocking(self, lookup_id: str, keys: List[Any]) -> List[Any]:
        """The chunks before the first that is missing."""
        found = await self.batched_get(keys)
        count = found.index(None) if None in found else len(found)
        for chunk in found[count:]:
            if chunk is not None:
                chunk.ref_count_down()
        return found[:count]

    # ---- chunks into the pool

    async def put(self, key: Any, memory_obj: Any) -> None:
        """Stores it; a key that is there is kept. Raises when it is not stored."""
        await self.batched_put([key], [memory_obj])

    def support_batched_put(self) -> bool:
        """Yes."""
        return True

    async def batched_put(self, keys: List[Any], memory_objs: List[Any]) -> None:
        """All in one call. Raises when one is not stored."""
        if self._breaker.open:
            raise error(Code.UNAVAILABLE, 'the pool did not answer a moment ago')
        values = [[span(self._head(chunk)), span(chunk.byte_array)] for chunk in memory_objs]
        self._see(value[1] for value in values)
        codes, _ = await self._run(PutKeys(self._names(keys), values), len(keys))
        failed = [code for code in codes if code is not Code.OK]
        if failed:
            raise error(failed[0], f'{len(failed)} of {len(keys)} chunks are not stored')

    # ---- the rest

    async def list(self) -> List[str]:
        """Keys of this namespace, as LMCache writes them."""
        found = await self._aio.list(self._prefix)
        return [entry.key[len(self._prefix):] for entry in found]

    def remove_sync(self, key: Any) -> bool:
        """Whether it was removed; what is being read is not."""
        def remove() -> bool:
            self._sync.remove(self._name(key))
            return True
        return self._asked(remove, False)

    def support_ping(self) -> bool:
        """Yes."""
        return True

    async def ping(self) -> int:
        """0, or the code of what is wrong."""
        try:
            await self._aio.health()
            return 0
        except McError as e:
            return int(e.code)

    async def close(self) -> None:
        """Waits for what flies, which the timeout bounds."""
        await self._aio.close()

    # ---- beneath

    def _name(self, key: Any) -> str:
        return self._prefix + str(key.to_string())

    def _names(self, keys: Sequence[Any]) -> List[str]:
        return [self._name(key) for key in keys]

    def _see(self, spans: Any) -> None:
        if self._seen is not None:
            self._seen.see(spans)

    def _head_bytes(self) -> int:
        return int(self.remote_metadata_bytes) if self.save_chunk_meta else 0

    def _head(self, chunk: Any) -> bytes:
        if not self.save_chunk_meta:
            return b''
        return bytes(RemoteMetadata(len(chunk.byte_array), chunk.get_shapes(), chunk.get_dtypes(),
                                    chunk.get_memory_format()).serialize())

    async def _run(self, call: Any, count: int) -> tuple[List[Code], Sequence[int]]:
        try:
            await self._aio._run(call)
            codes = [CODES[code] for code in call.results.codes]
        except McError as e:
            codes = [e.code] * count
        self._breaker.note(bool(codes) and all(map(gone, codes)))
        return codes, call.results.bytes

    def _asked(self, call: Callable[[], T], otherwise: T) -> T:
        if self._breaker.open:
            return otherwise
        try:
            out = call()
        except McError as e:
            self._breaker.note(gone(e.code))
            return otherwise
        self._breaker.note(False)
        return out

    def _shaped(self, chunk: Any, head: bytes, size: int) -> Any:
        """The chunk as it was stored; None, and freed, when it cannot be that."""
        try:
            if not self.save_chunk_meta:
                out = self.reshape_partial_chunk(chunk, size)
                if len(out.meta.shapes or ()) == 1:  # LMCache 0.5.6 forgets it
                    out.meta.shapes = [out.meta.shape]
                return out
            said = RemoteMetadata.deserialize(head)
            if said.length != size - len(head) or said.length > len(chunk.byte_array):
                raise ValueError(f'a chunk of {size} bytes that says {said.length}')
            if (said.shapes, said.dtypes, said.fmt) == (self.meta_shapes, self.meta_dtypes,
                                                        self.meta_fmt):
                return chunk
            smaller = self._copied(chunk, said)
        except Exception:  # whatever bytes that are no chunk make of it
            smaller = None
        chunk.ref_count_down()
        return smaller

    def _copied(self, chunk: Any, said: Any) -> Optional[Any]:
        """The last chunk of a prompt, as a rule."""
        out = self.local_cpu_backend.allocate(said.shapes, said.dtypes, said.fmt)
        if out is None:
            return None
        to = span(out.byte_array)
        if to.bytes != said.length:
            out.ref_count_down()
            return None
        ctypes.memmove(to.address, span(chunk.byte_array).address, to.bytes)
        return out
