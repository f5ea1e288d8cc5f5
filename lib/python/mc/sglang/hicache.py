"""McHiCache: a dynamic storage backend of SGLang's HiCache.

SGLang calls it from its prefetch and backup threads. Nothing raises there: what fails is a page
that is not there, or one that was not stored. Every call ends within the timeout, and while the
pool does not answer calls end at once. Thread: any.
"""
from __future__ import annotations

import logging
import threading
import time
from typing import Any, Callable, List, Optional, Sequence, TypeVar

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolTransferResult

from mc._breaker import Breaker, gone
from mc._calls import GetKeys, PutKeys
from mc._client import need_namespace, open_store, parse
from mc.buffers import Span, span
from mc.errors import CODES, Code, McError, Put
from mc.sglang.keys import KV, Keys
from mc.sglang.pages import POLICIES, grouped, leading, places_of

T = TypeVar('T')
_Move = Callable[[List[str], List[List[Span]]], List[bool]]  # of keys and their pieces
# Of SGLang's own in the extra configuration.
_SGLANGS = ('backend_name', 'module_path', 'class_name', 'interface_v1')
_WHERE = '--hicache-storage-backend-extra-config'
_log = logging.getLogger('mc')


def name_of(pool: Any) -> str:
    """Of a pool's name, which is an enumeration or text."""
    return str(getattr(pool, 'value', pool))


class McHiCache(HiCacheStorage):  # type: ignore[misc]
    """Pages of one rank in the pool. `storage_config.extra_config` has the settings."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        extra = dict(storage_config.extra_config or {})
        self._zero_copy = bool(extra.get('interface_v1', 0))
        for name in _SGLANGS:
            extra.pop(name, None)
        settings = parse({'namespace': 'default', **extra}, _WHERE)
        self._namespace = need_namespace(settings, _WHERE)
        self._config, self._registers = storage_config, settings.register
        self.registered_pools: dict[Any, Any] = {}
        self.mem_pool_host: Any = None
        self._keys: Optional[Keys] = None
        self._memory: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._counts: dict[str, List[float]] = {}
        self._forget_counts()
        self._store = open_store(settings, f'sglang-tp{storage_config.tp_rank}')
        self._breaker = Breaker('SGLang', settings.master)

    # ---- pools of the host

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """The pool of the KV cache, and its memory."""
        self.mem_pool_host = mem_pool_host
        self._keys = Keys(self._namespace, self._config, mem_pool_host, self._zero_copy)
        self._register(mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """A pool beside it, and its memory."""
        self.registered_pools[name_of(host_pool_name)] = host_pool
        self._register(host_pool)

    def on_host_pools_registered(self) -> None:
        """Nothing is left to do."""

    # ---- pages, zero-copy

    def batch_exists(self, keys: List[str], extra_info: Any = None) -> int:
        """How many pages, from the first, are stored without a gap. They are leased."""
        names = self._names()
        if self._is_logical():
            return len(keys)
        found = self._safely(lambda: self._store.match_prefix(names.of_pages(keys)), 0)
        return found // names.factor

    def batch_get_v1(self, keys: List[str], host_indices: Any,
                     extra_info: Any = None) -> List[bool]:
        """Fills the pages; whether each was."""
        if self._is_logical():
            return [True] * len(keys)
        return self._safely(lambda: self._pages(keys, host_indices, self._get), [False] * len(keys))

    def batch_set_v1(self, keys: List[str], host_indices: Any,
                     extra_info: Any = None) -> List[bool]:
        """Stores the pages; whether each is. What another rank has as well, that one writes."""
        if self._is_logical() or not self._config.is_storage_writer:
            return [True] * len(keys)
        return self._safely(lambda: self._pages(keys, host_indices, self._set), [False] * len(keys))

    # ---- several pools

    def batch_exists_v2(self, keys: List[str], pool_transfers: Any = None,
                        extra_info: Any = None) -> Any:
        """The usable prefix: every pool has what its policy asks for. One call for all pools."""
        transfers = [t for t in pool_transfers or [] if name_of(t.hit_policy) in POLICIES]
        there = self._safely(lambda: self._there(keys, transfers), None)
        if there is None:
            return PoolTransferResult(0, {}, [])
        pages = leading(there[0])
        hits: dict[Any, int] = {KV: pages} if pages else {}
        usable = list(range(1, pages + 1))
        for transfer, found in zip(transfers, there[1:]):
            if not usable:
                break
            ends = POLICIES[name_of(transfer.hit_policy)](found[:pages], transfer)
            if ends:
                hits[transfer.name] = max(ends)
            usable = [end for end in usable if end in ends]
        return PoolTransferResult(usable[-1] if usable else 0, hits, usable)

    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, List[bool]]:
        """Fills the pages of each pool; for each pool, whether each was."""
        return self._transfer(transfers, self._get)

    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, List[bool]]:
        """Stores the pages of each pool; for each pool, whether each is."""
        return self._transfer(transfers, self._set)

    # ---- pages that SGLang copies out of its pool

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """`target_location`, filled, or None. With sizes, which addresses have: whether it was."""
        if target_sizes is not None:
            return self.batch_get([key], [target_location], [target_sizes]) == 1
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: List[str], target_locations: Any = None,
                  target_sizes: Any = None) -> Any:
        """The page of each key, or None. With sizes, how many, from the first, were filled."""
        places = list(target_locations or [])

        def fill() -> List[bool]:
            return self._get(self._plain(keys), places_of(keys, places, target_sizes))
        filled = self._safely(fill, [False] * len(keys))
        if target_sizes is not None:
            return leading(filled)
        found = [place if well else None for place, well in zip(places, filled)]
        return found or [None] * len(keys)

    def set(self, key: str, value: Any = None, target_location: Any = None,
            target_sizes: Any = None) -> bool:
        """Stores a page, of a tensor or of addresses with sizes. Whether it is stored."""
        one = (None, [target_location], [target_sizes]) if target_sizes is not None else ([value],)
        return self.batch_set([key], *one)

    def batch_set(self, keys: List[str], values: Any = None, target_locations: Any = None,
                  target_sizes: Any = None) -> bool:
        """The same of many; whether all are stored."""
        if not self._config.is_storage_writer:
            return True
        places = list((values if target_sizes is None else target_locations) or [])

        def store() -> List[bool]:
            return self._set(self._plain(keys), places_of(keys, places, target_sizes))
        return all(self._safely(store, [False]))

    def exists(self, key: str) -> bool:
        """Whether `set` stored it."""
        return self._safely(lambda: self._store.exists(self._plain([key])[0]), False)

    # ---- the rest

    def clear(self) -> bool:
        """Removes what engines of this kind stored, of all ranks; not what others did."""
        def remove() -> bool:
            self._store.remove_prefix(self._names().prefix, force=True)
            return True
        return self._safely(remove, False)

    def get_stats(self) -> Any:
        """Pages and GB/s of each batch since the last call, as SGLang collects them."""
        if not self._config.enable_storage_metrics:
            return None
        from sglang.srt.observability.metrics_collector import StorageMetrics

        out = StorageMetrics()
        with self._lock:
            for name, values in self._counts.items():
                getattr(out, name).extend(values)
            self._forget_counts()
        return out

    def close(self) -> None:
        """Waits for calls under way, which the timeout bounds."""
        self._store.close()

    # ---- beneath

    def _names(self) -> Keys:
        if self._keys is None:
            raise ValueError('register_mem_pool_host comes before pages')
        return self._keys

    def _plain(self, keys: Sequence[str]) -> List[str]:
        """As of_pages, which has more than one key a page where heads are split."""
        names = self._names()
        if names.factor == 1:
            return names.of_pages(keys)
        return [f'{names.prefix}{self._config.tp_rank}.whole@{KV}@{key}' for key in keys]

    def _is_logical(self) -> bool:
        return getattr(self.mem_pool_host, 'kv_buffer', None) is None

    def _register(self, pool: Any) -> None:
        if not self._registers:
            return
        buffers = getattr(pool, 'get_hybrid_pool_buffer', None)
        found = buffers() if buffers is not None else getattr(pool, 'kv_buffer', None)
        for buffer in found if isinstance(found, (list, tuple)) else [found]:
            try:
                if buffer is None:
                    continue
                place = span(buffer)
                if place.address not in self._memory:
                    self._memory[place.address] = self._store.register(place)
            except (McError, BufferError, TypeError) as e:
                _log.warning('mc: a pool of SGLang is not registered, and copied instead: %s', e)

    def _pages(self, keys: Sequence[str], host_indices: Any,
               move: _Move) -> List[bool]:
        names, pool = self._names(), self.mem_pool_host
        if names.factor > 1:
            said = pool.get_split_heads_page_buffer_meta(host_indices, names.factor)
        else:
            said = pool.get_page_buffer_meta(host_indices)
        wanted = names.of_pages(keys)
        parts = move(wanted, grouped(said, len(wanted)))
        return [all(parts[at:at + names.factor]) for at in range(0, len(parts), names.factor)]

    def _there(self, keys: Sequence[str], transfers: Sequence[Any]) -> List[List[bool]]:
        names = self._names()
        kv = [] if self._is_logical() else names.of_pages(keys)
        wanted = list(kv)
        for transfer in transfers:
            wanted += names.of_pool(name_of(transfer.name), self._pool(transfer), keys)
        found = self._store.exists_many(wanted)
        whole = [all(found[at:at + names.factor]) for at in range(0, len(kv), names.factor)]
        out = [whole if kv else [True] * len(keys)]
        for at in range(len(kv), len(found), len(keys) or 1):
            out.append(found[at:at + len(keys)])
        return out

    def _pool(self, transfer: Any) -> Any:
        name = name_of(transfer.name)
        pool = self.registered_pools.get(name)
        if pool is None and name == KV:
            pool = self.mem_pool_host
        if pool is None:
            raise ValueError(f'no pool {name} is registered')
        return pool

    def _transfer(self, transfers: Sequence[Any],
                  move: _Move) -> dict[str, List[bool]]:
        out: dict[str, List[bool]] = {}
        for transfer in transfers:
            keys = list(transfer.keys or [])
            out[transfer.name] = [False] * len(keys)

        def all_at_once() -> None:
            names: List[str] = []
            places: List[List[Span]] = []
            for transfer in transfers:
                keys, pool = list(transfer.keys or []), self._pool(transfer)
                if keys:
                    names += self._names().of_pool(name_of(transfer.name), pool, keys)
                    said = pool.get_page_buffer_meta(transfer.host_indices)
                    places += grouped(said, len(keys))
            done = iter(move(names, places))
            for transfer in transfers:
                out[transfer.name] = [next(done) for _ in transfer.keys or []]
        self._safely(all_at_once, None)
        return out

    def _get(self, names: List[str], places: List[List[Span]]) -> List[bool]:
        call, begun = GetKeys(names, places), time.monotonic()
        codes = self._run(call)
        sizes = [sum(part.bytes for part in place) for place in places]
        out = [code is Code.OK and got == want
               for code, got, want in zip(codes, call.results.bytes, sizes)]
        self._count('prefetch', out.count(True), sum(sizes), begun)
        return out

    def _set(self, names: List[str], places: List[List[Span]]) -> List[bool]:
        call, begun = PutKeys(names, places), time.monotonic()
        codes = self._run(call)
        out = [code is Code.OK and outcome != Put.NOT_ADMITTED
               for code, outcome in zip(codes, call.results.flags)]
        size = sum(part.bytes for place in places for part in place)
        self._count('backup', out.count(True), size, begun)
        return out

    def _run(self, call: Any) -> List[Code]:
        self._store._run(call)
        codes = [CODES[code] for code in call.results.codes]
        self._breaker.note(bool(codes) and all(map(gone, codes)))
        return codes

    def _safely(self, call: Callable[[], T], otherwise: T) -> T:
        if self._breaker.open:
            return otherwise
        try:
            return call()
        except McError as e:
            self._breaker.note(gone(e.code))
            _log.info('mc: %s', e)
        except Exception:  # on SGLang's threads it would end them
            _log.exception('mc: a call of SGLang failed')
        return otherwise

    def _count(self, what: str, pages: int, size: int, begun: float) -> None:
        if self._config.enable_storage_metrics and pages:
            with self._lock:
                self._counts[f'{what}_pgs'].append(pages)
                self._counts[f'{what}_bandwidth'].append(
                    size / (1 << 30) / max(time.monotonic() - begun, 1e-9))

    def _forget_counts(self) -> None:
        self._counts = {f'{what}_{of}': [] for what in ('prefetch', 'backup')
                        for of in ('pgs', 'bandwidth')}
