"""What the connector counts, in one dictionary that vLLM carries to its /metrics and its log.

Lists of seconds and counts only, so that dictionaries of several workers add up.
"""
from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

LISTS = ('lookup_seconds', 'load_seconds', 'save_seconds')
COUNTS = ('loaded_blocks', 'saved_blocks', 'existed_blocks', 'loaded_bytes')
LABELED = {'failed_blocks': 'code', 'dropped_blocks': 'reason', 'lookups': 'outcome'}
_MOST = 1000  # seconds kept between two looks


def empty() -> dict[str, Any]:
    """Nothing counted."""
    out: dict[str, Any] = {name: [] for name in LISTS}
    out |= {name: 0 for name in COUNTS}
    out |= {name: {} for name in LABELED}
    return out


def is_empty(data: Mapping[str, Any]) -> bool:
    """Whether nothing was counted."""
    return not any(data.get(name) for name in (*LISTS, *COUNTS, *LABELED))


def add(into: dict[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the other to the first, and gives it."""
    for name in LISTS:
        into[name] = (into.get(name, []) + list(other.get(name, [])))[-_MOST:]
    for name in COUNTS:
        into[name] = into.get(name, 0) + other.get(name, 0)
    for name in LABELED:
        mine = into.setdefault(name, {})
        for label, count in other.get(name, {}).items():
            mine[label] = mine.get(label, 0) + count
    return into


def reduce(data: Mapping[str, Any]) -> dict[str, int | float]:
    """For one line of the log."""
    out: dict[str, int | float] = {name: data.get(name, 0) for name in COUNTS}
    for name in LABELED:
        for label, count in data.get(name, {}).items():
            out[f'{name}[{label}]'] = count
    for name in LISTS:
        values = sorted(data.get(name, []))
        if values:
            out[f'{name}_p50_ms'] = round(1e3 * values[len(values) // 2], 3)
    return out


class Counters:
    """Thread: any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._data = empty()

    def take(self) -> dict[str, Any] | None:
        """What was counted since the last look; None when it is nothing."""
        with self._lock:
            if is_empty(self._data):
                return None
            out, self._data = self._data, empty()
            return out

    def looked_up(self, outcome: str, seconds: float) -> None:
        """As mc.vllm.lookups tells it."""
        with self._lock:
            self._label('lookups', outcome, 1)
            if seconds:
                self._data['lookup_seconds'] = [*self._data['lookup_seconds'], seconds][-_MOST:]

    def moved(self, what: str, *values: Any) -> None:
        """As mc.vllm.worker tells it."""
        with self._lock:
            data = self._data
            if what == 'loaded':
                data['loaded_blocks'] += values[0]
                data['load_seconds'].append(values[1])
                data['loaded_bytes'] += values[2]
            elif what == 'saved':
                data['saved_blocks'] += values[0]
                data['existed_blocks'] += values[1]
                data['save_seconds'].append(values[2])
            elif what == 'failed':
                self._label('failed_blocks', values[1], values[0])
            else:
                self._label('dropped_blocks', values[1], values[0])

    def _label(self, name: str, label: str, count: int) -> None:
        self._data[name][label] = self._data[name].get(label, 0) + count
