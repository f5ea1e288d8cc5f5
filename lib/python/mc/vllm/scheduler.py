"""What to look up, to load and to save, decided in vLLM's scheduler from what it tells of requests.

Knows no vLLM class, only names of fields. A block is saved in the step that computes its last
token; one with generated tokens a step later, when it is known that they were accepted. Loading is
asynchronous only: vLLM takes blocks that a synchronous load promised for valid before they are
there, and another request may read one whose load fails.
Thread: the engine core's.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

_KNOWN = 1 << 15  # blocks in each half of what is remembered as being in the pool


@dataclass
class Transfer:
    """Blocks of one request that move: the i-th hash names the bytes of the i-th block."""

    request: str
    scope: str
    hashes: bytes
    blocks: list[int]


@dataclass
class Plan:
    """What the workers do in a step."""

    loads: list[Transfer] = field(default_factory=list)
    saves: list[Transfer] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)  # blocks that are written from now on
    release: list[str] = field(default_factory=list)  # finished; tell when their saves are done
    idle: bool = False  # no forward pass


class _Known:
    """The blocks that were put or found last: 32,768 to 65,536 of them."""

    def __init__(self) -> None:
        self._young: dict[bytes, None] = {}
        self._old: dict[bytes, None] = {}

    def add(self, names: Iterable[bytes]) -> None:
        self._young.update(dict.fromkeys(names))
        if len(self._young) > _KNOWN:
            self._young, self._old = {}, self._young

    def discard(self, names: Iterable[bytes]) -> None:
        for name in names:
            self._young.pop(name, None)
            self._old.pop(name, None)

    def has_any(self, names: Sequence[bytes]) -> bool:
        return not (self._young.keys().isdisjoint(names) and self._old.keys().isdisjoint(names))

    def __contains__(self, name: bytes) -> bool:
        return name in self._young or name in self._old

    def clear(self) -> None:
        self._young, self._old = {}, {}


class _Tracked:
    """A request that the scheduler told of."""

    def __init__(self, request: Any, scope: str) -> None:
        self.request = request
        self.scope = scope  # "": not shared
        self.blocks: list[int] = []
        self.computed = 0  # tokens, before the step that was planned last
        self.saved = 0  # leading blocks that need no saving any more
        self.sent = False  # a save of it was planned
        self.local = 0  # tokens that the engine had itself at the last lookup
        self.loading: list[int] | None = None  # blocks
        self.first_loading = 0
        self.failed = False  # a load failed: it is not tried again
        self.asked_since: float | None = None  # for blocks that another engine is to save
        # The blocks asked about, and how many of them were found.
        self.told: tuple[tuple[int, int], int] | None = None


class Scheduler:
    """`lookup(request, scope, hashes, count)` gives matched blocks, or None: not known yet."""

    def __init__(
        self,
        block_size: int,
        lookup: Callable[[str, str, bytes, int], int | None],
        scope_of: Callable[[Any], str],
        *,
        hash_block_size: int | None = None,
        load: bool = True,
        save: bool = True,
        save_decoded: bool = True,
        wait: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._size = block_size
        self._ratio = block_size // (hash_block_size or block_size)
        self._lookup, self._scope_of = lookup, scope_of
        self._load, self._save, self._save_decoded = load, save, save_decoded
        self._wait, self._clock = wait, clock
        self._requests: dict[str, _Tracked] = {}
        self._known = _Known()
        self._plan = Plan()

    # ---- lookups

    def matched(self, request: Any, computed: int) -> int | None:
        """Tokens beyond the `computed` ones that can be loaded; None: ask again."""
        tracked = self._track(request)
        tracked.local = computed
        if not self._load or tracked.failed or not tracked.scope:
            return 0
        if getattr(request, 'skip_reading_prefix_cache', False):
            return 0
        first = computed // self._size
        # One token is left to compute, so that there is something to sample from.
        end = min((request.num_tokens - 1) // self._size, self._hashed(request))
        if computed % self._size or first >= end:
            return 0
        if tracked.told is None or tracked.told[0] != (first, end):
            hashes = b''.join(self._names(request, first, end))
            found = self._lookup(request.request_id, tracked.scope, hashes, end - first)
            if found is None or found < end - first and self._waits(tracked):
                return None
            found = min(found, end - first)
            tracked.told = ((first, end), found)
            self._missed(request, first + found, end)
        return tracked.told[1] * self._size

    def _missed(self, request: Any, begin: int, end: int) -> None:
        """The pool lacks these blocks. If it had them, it evicts, and none is taken for saved any
        more; a put of what is there moves nothing."""
        if self._known.has_any(self._names(request, begin, end)):
            self._known.clear()

    def _waits(self, tracked: _Tracked) -> bool:
        """Whether another engine computes the prompt, and may still be saving its blocks."""
        told = getattr(tracked.request, 'kv_transfer_params', None) or {}
        if not told.get('do_remote_prefill'):
            return False
        now = self._clock()
        if tracked.asked_since is None:
            tracked.asked_since = now
        return now - tracked.asked_since < self._wait

    def allocated(self, request: Any, block_ids: Sequence[int], external: int) -> None:
        """The scheduler gave the request its blocks; `external` tokens of them are to be loaded."""
        tracked = self._track(request)
        if external <= 0:
            return
        first = tracked.local // self._size
        count = external // self._size
        blocks = list(block_ids[first : first + count])
        tracked.told = None
        tracked.loading, tracked.first_loading = blocks, first
        names = self._names(request, first, first + count)
        self._plan.loads.append(
            Transfer(request.request_id, tracked.scope, b''.join(names), blocks))
        self._plan.fresh += blocks
        self._known.add(names)

    # ---- steps

    def plan(self, output: Any) -> Plan:
        """Of a step; forgets what it gives."""
        plan, self._plan = self._plan, Plan()
        plan.idle = output.total_num_scheduled_tokens == 0
        for new in output.scheduled_new_reqs:
            self._given(plan, new.req_id, new.block_ids, new.num_computed_tokens, True)
        cached = output.scheduled_cached_reqs
        for at, request in enumerate(cached.req_ids):
            again = request in cached.resumed_req_ids
            computed = cached.num_computed_tokens[at]
            self._given(plan, request, cached.new_block_ids[at], computed, again)
        for request, scheduled in output.num_scheduled_tokens.items():
            tracked = self._requests.get(request)
            if tracked is not None:
                self._save_full(plan, tracked, scheduled)
        return plan

    def _given(self, plan: Plan, request: str, ids: Any, computed: int, all_of_them: bool) -> None:
        tracked = self._requests.get(request)
        if tracked is None:
            return
        new = list(ids[0]) if ids else []
        before = 0 if all_of_them else len(tracked.blocks)
        tracked.blocks = new if all_of_them else tracked.blocks + new
        tracked.computed = computed
        tracked.loading = None
        # What lies below is not written: it was computed or loaded before.
        plan.fresh += tracked.blocks[max(before, computed // self._size) :]

    def _save_full(self, plan: Plan, tracked: _Tracked, scheduled: int) -> None:
        prompt = tracked.request.num_prompt_tokens
        full = min(tracked.computed + scheduled, prompt) // self._size
        if tracked.computed > prompt and self._save_decoded:
            full = max(full, tracked.computed // self._size)
        self._save_up_to(plan, tracked, full)

    def _save_up_to(self, plan: Plan, tracked: _Tracked, full: int) -> None:
        full = min(full, self._hashed(tracked.request), len(tracked.blocks))
        if not self._save or not tracked.scope or full <= tracked.saved:
            return
        names = self._names(tracked.request, tracked.saved, full)
        blocks = tracked.blocks[tracked.saved:full]
        tracked.saved = full
        if self._known.has_any(names):
            new = [at for at, name in enumerate(names) if name not in self._known]
            names, blocks = [names[at] for at in new], [blocks[at] for at in new]
        if blocks:
            self._known.add(names)
            tracked.sent = True
            request = tracked.request.request_id
            plan.saves.append(Transfer(request, tracked.scope, b''.join(names), blocks))

    def finished(self, request: Any, block_ids: Sequence[int]) -> bool:
        """Whether the request's blocks must be kept until the workers release it."""
        tracked = self._requests.pop(request.request_id, None)
        if tracked is None or tracked.loading is not None:
            return False  # vLLM keeps the blocks of a load by itself
        tracked.blocks = list(block_ids)
        full = request.num_computed_tokens // self._size
        if not self._save_decoded:
            full = min(full, request.num_prompt_tokens // self._size)
        # The KV of the last token is not computed, or not yet when steps overlap.
        full = min(full, (request.num_tokens - 1) // self._size)
        self._save_up_to(self._plan, tracked, full)
        if tracked.sent:
            self._plan.release.append(request.request_id)
        return tracked.sent

    def unshare(self, adapter: Any) -> None:
        """Requests of this LoRA adapter, by name or number: their blocks may be of other weights.
        """
        for tracked in self._requests.values():
            own = tracked.request.lora_request
            if own is not None and (own.lora_name == adapter.lora_name
                                    or own.lora_int_id == adapter.lora_int_id):
                tracked.scope = ''

    def reset(self) -> None:
        """Forgets what it believes to be in the pool; requests under way are not shared any more.
        """
        self._known.clear()
        for tracked in self._requests.values():
            tracked.told = None
            tracked.scope = ''

    # ---- what the workers tell

    def lost(self, hashes: Iterable[bytes]) -> None:
        """These were not saved after all."""
        self._known.discard(hashes)

    def received(self, requests: Iterable[str], invalid: Iterable[int]) -> None:
        """Loads that ended, and blocks whose load failed in some rank, maybe before the load ended
        in all."""
        bad = set(invalid)
        for tracked in self._requests.values() if bad else ():
            for at, block in enumerate(tracked.loading or ()):
                if block in bad:
                    tracked.failed = True
                    lost = tracked.first_loading + at
                    self.lost(self._names(tracked.request, lost, lost + 1))
        for request in requests:
            if (ended := self._requests.get(request)) is not None:
                ended.loading = None

    # ---- small things

    def _track(self, request: Any) -> _Tracked:
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            tracked = _Tracked(request, self._scope_of(request))
            self._requests[request.request_id] = tracked
        tracked.request = request
        return tracked

    def _hashed(self, request: Any) -> int:
        return len(request.block_hashes) // self._ratio

    def _names(self, request: Any, first: int, end: int) -> list[bytes]:
        """The hashes of these blocks: of all tokens up to the last of each."""
        step = self._ratio
        return request.block_hashes[first * step + step - 1 : end * step : step]  # type: ignore
