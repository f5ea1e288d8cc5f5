"""Moves blocks between the engine's memory and the pool, one call for all blocks of a request.

`pool` is mc.vllm.pool.Pool, or a test's. What is submitted runs beside the engine; finished() tells
what has ended. A save no longer reads a block that will be written: before() waits for that, no
longer than the pool's own timeout.
Thread: the worker's own; the pool has others.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from mc.vllm import keys
from mc.vllm.scheduler import Plan, Transfer

OK = 0  # of mc_code
_IDLE = 0.005  # seconds that a step without a forward pass waits for what moves


class PoolLike(Protocol):
    """What a worker needs of a pool."""

    def put(self, tag: int, prefix: bytes, hashes: bytes, blocks: list[int]) -> None:
        """Submits a put."""

    def get(self, tag: int, prefix: bytes, hashes: bytes, blocks: list[int]) -> None:
        """Submits a get."""

    def take(self) -> list[Done]:
        """What has ended."""

    def wait(self, seconds: float = 0.0) -> None:
        """Until something has ended, or so many seconds."""


@dataclass
class Done:
    """An ended put or get: a code for each block."""

    tag: int
    codes: list[int]
    seconds: float
    existed: int = 0  # of a put


@dataclass
class Outcome:
    """What has ended since the last look."""

    sent: set[str] = field(default_factory=set)
    received: set[str] = field(default_factory=set)
    invalid: set[int] = field(default_factory=set)  # blocks


class Worker:
    """Of one rank, whose part of a block has `block_bytes`."""

    def __init__(
        self,
        pool: PoolLike,
        rank: str,
        block_bytes: int,
        *,
        save_queue: int,
        save_waits: bool,
        observe: Callable[..., None],
        code_name: Callable[[int], str] = str,
    ) -> None:
        self._pool, self._rank, self._block_bytes = pool, rank, block_bytes
        self._save_queue, self._save_waits = save_queue, save_waits
        self._observe, self._code_name = observe, code_name
        self._tags = itertools.count(1)
        self._loads: dict[int, Transfer] = {}
        self._saves: dict[int, Transfer] = {}
        self._saving: dict[str, int] = {}  # request -> saves under way
        self._releases: set[str] = set()
        self._saving_bytes = 0
        self._outcome = Outcome()
        self._lost: list[bytes] = []

    # ---- a step

    def before(self, plan: Plan) -> None:
        """Before anything of the step writes: saves that read what it overwrites end first."""
        if not self._saves or not plan.fresh:
            return
        fresh = frozenset(plan.fresh)
        while any(not fresh.isdisjoint(save.blocks) for save in self._saves.values()):
            self._pool.wait()
            self._take()

    def load(self, plan: Plan) -> None:
        """Submits the loads."""
        for transfer in plan.loads:
            tag = next(self._tags)
            self._loads[tag] = transfer
            name = keys.prefix(transfer.scope, self._rank)
            self._pool.get(tag, name, transfer.hashes, transfer.blocks)
        plan.loads = []

    def save(self, plan: Plan) -> None:
        """After the step's forward pass. What was submitted once is not submitted again."""
        for transfer in plan.saves:
            self._save(transfer)
        plan.saves = []
        self._releases.update(plan.release)
        plan.release = []
        while self._save_waits and self._saves:
            self._pool.wait()
            self._take()

    def finished(self, idle: bool = False) -> Outcome:
        """What has ended since the last look. `idle`: the engine has nothing else to do, and would
        look again at once."""
        self._take()
        if idle and not self._tells():
            self._pool.wait(_IDLE)
            self._take()
        out, self._outcome = self._outcome, Outcome()
        done = self._released()
        self._releases -= done
        out.sent = done
        return out

    def _released(self) -> set[str]:
        return {request for request in self._releases if request not in self._saving}

    def _tells(self) -> bool:
        return bool(self._outcome.received or self._released())

    def lost(self) -> list[bytes]:
        """Hashes of blocks that the scheduler takes for saved, and that are not."""
        out, self._lost = self._lost, []
        return out

    # ---- beneath

    def _save(self, transfer: Transfer) -> None:
        size = len(transfer.blocks) * self._block_bytes
        if self._saving_bytes + size > self._save_queue and self._saves:
            self._observe('dropped', len(transfer.blocks), 'queue')
            self._lost += _split(transfer)
            return
        tag = next(self._tags)
        self._saves[tag] = transfer
        self._saving_bytes += size
        self._saving[transfer.request] = self._saving.get(transfer.request, 0) + 1
        name = keys.prefix(transfer.scope, self._rank)
        self._pool.put(tag, name, transfer.hashes, transfer.blocks)

    def _take(self) -> None:
        for done in self._pool.take():
            if done.tag in self._loads:
                self._loaded(self._loads.pop(done.tag), done)
            elif done.tag in self._saves:
                self._saved(self._saves.pop(done.tag), done)

    def _loaded(self, transfer: Transfer, done: Done) -> None:
        self._outcome.received.add(transfer.request)
        good = done.codes.count(OK)
        if good < len(done.codes):
            for block, code in zip(transfer.blocks, done.codes, strict=True):
                if code != OK:
                    self._outcome.invalid.add(block)
                    self._observe('failed', 1, self._code_name(code))
        self._observe('loaded', good, done.seconds, good * self._block_bytes)

    def _saved(self, transfer: Transfer, done: Done) -> None:
        self._saving_bytes -= len(transfer.blocks) * self._block_bytes
        left = self._saving[transfer.request] - 1
        if left:
            self._saving[transfer.request] = left
        else:
            del self._saving[transfer.request]
        good = done.codes.count(OK)
        if good < len(done.codes):
            for name, code in zip(_split(transfer), done.codes, strict=True):
                if code != OK:
                    self._lost.append(name)
                    self._observe('dropped', 1, self._code_name(code))
        self._observe('saved', good - done.existed, done.existed, done.seconds)


def _split(transfer: Transfer) -> Iterable[bytes]:
    count = len(transfer.blocks)
    size = len(transfer.hashes) // count
    return [transfer.hashes[at * size : (at + 1) * size] for at in range(count)]
