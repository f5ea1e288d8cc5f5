"""python3 -m mc.doctor [MASTER] [--cluster-key FILE] [--tenant NAME]: whether this machine and its
pool are in order, and why not. $MC_CLUSTER_KEY names the file where the option is not given.

It prints what it looks at, and ends with 1 when something is wrong. Of engines that share a pool it
says which cannot find each other's blocks, and by what they differ.
"""
from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, Callable, Iterator, Sequence

KEYS = 'vllm-fingerprint:'
SHOWN = 60  # characters of a value
SECONDS = 5.0  # that the pool may take for an answer


class Report:
    """Lines on standard output, and how many of them are faults."""

    def __init__(self, out: Callable[[str], None] = print) -> None:
        self.faults = 0
        self._out = out

    def good(self, what: str, text: str) -> None:
        """A line."""
        self._out(f'ok      {what:12} {text}')

    def bad(self, what: str, text: str) -> None:
        """A line about a fault."""
        self.faults += 1
        self._out(f'FAULT   {what:12} {text}')

    def note(self, what: str, text: str) -> None:
        """A line about what may be meant so."""
        self._out(f'note    {what:12} {text}')


def library(report: Report) -> bool:
    """The library, and what it can do here."""
    try:
        import mc
        from mc import _abi
    except ImportError as e:
        report.bad('library', str(e))
        return False
    report.good('library', f'{mc.__version__}, {_abi.lib._name}')
    report.good('features', ' '.join(sorted(mc.features())))
    return True


def memory(report: Report) -> None:
    """What shared memory may take."""
    try:
        found = os.statvfs('/dev/shm')
    except OSError as e:
        report.bad('/dev/shm', f'{e.strerror}: transfers of this host need it')
        return
    free = found.f_bavail * found.f_frsize >> 20
    (report.good if free >= 256 else report.bad)('/dev/shm', f'{free} MiB free')


def pool(report: Report, master: str, **options: Any) -> None:
    """The master, its nodes, and a value that goes there and back; `options` of the store."""
    import mc
    try:
        store = mc.Store(master, timeout=SECONDS, **options)
    except mc.McError as e:  # as a file with the secret that others may read
        report.bad('options', str(e))
        return
    with store as s:
        try:
            health = s.health(SECONDS)
        except mc.McError as e:
            report.bad('master', f'{master}: {e}')
            return
        report.good('master', master)
        say = report.good if health.nodes else report.bad
        say('nodes', f'{health.nodes} ready, {health.free_bytes >> 20} MiB free')
        if health.nodes:
            _there_and_back(report, s)
        compare(report, _fingerprints(s))


def _there_and_back(report: Report, s: Any) -> None:
    import mc
    key, value = f'mc-doctor:{s.name}', os.urandom(1 << 16)
    try:
        s.put(key, value)
        same = s.get(key) == value
        s.remove(key, force=True)
        (report.good if same else report.bad)('a value', 'there and back' if same else
                                              'other bytes came back')
    except mc.McError as e:
        report.bad('a value', str(e))


def _fingerprints(s: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    import mc
    for listed in s.list(KEYS):
        try:
            parts = json.loads(s.get(listed.key))
        except (mc.McError, ValueError):
            continue
        if isinstance(parts, dict):
            yield listed.key[len(KEYS):], parts


def differences(sets: Sequence[dict[str, Any]]) -> list[str]:
    """The rows in which they are not all the same, with their values."""
    rows = sorted({name for parts in sets for name in parts})
    found = []
    for name in rows:
        values = [json.dumps(parts.get(name), sort_keys=True)[:SHOWN] for parts in sets]
        if len(set(values)) > 1:
            found.append(f'{name}: ' + ' / '.join(dict.fromkeys(values)))
    return found


def compare(report: Report, fingerprints: Iterator[tuple[str, dict[str, Any]]]) -> None:
    """Of each model: whether its engines find each other's blocks."""
    models: dict[str, list[dict[str, Any]]] = {}
    for _, parts in fingerprints:
        models.setdefault(str(parts.get('model')), []).append(parts)
    for model, sets in sorted(models.items()):
        if len(sets) == 1:
            report.good('engines', f'{model}: all that were here can share')
            continue
        report.note('engines', f'{model}: {len(sets)} kinds that do not share; they differ in')
        for row in differences(sets):
            report.note('', f'  {row}')


def main(words: Sequence[str]) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser('python3 -m mc.doctor', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('master', nargs='?', default='127.0.0.1:5550')
    parser.add_argument('--cluster-key', metavar='FILE', default=os.environ.get('MC_CLUSTER_KEY'),
                        help="the cluster's secret")
    parser.add_argument('--tenant', metavar='NAME', help='whose values')
    asked = parser.parse_args(words)
    report = Report()
    if library(report):
        memory(report)
        pool(report, asked.master, cluster_key=asked.cluster_key or None, tenant=asked.tenant)
    return 1 if report.faults else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
