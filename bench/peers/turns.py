"""Sides take turns at one case; a figure is the median of the ratios of each turn."""
import json
import statistics
import sys

from side import Failed

PROGRAM = 'peers'


class Case:
    """What is measured: `name`, the `unit` of its value, whether `less` is better, and what the ratio
    is to reach beside each side, by name."""

    def __init__(self, name, unit, less, targets=None):
        self.name, self.unit, self.less, self.targets = name, unit, less, targets or {}


def ratio(case, ours, theirs):
    """Bigger is better for us."""
    return theirs / ours if case.less else ours / theirs


def line(case, ours, side, theirs):
    """The figure of our values beside a side's, turn by turn."""
    ratios = [ratio(case, a, b) for a, b in zip(ours, theirs)]
    middle = statistics.median(ratios)
    found = {'bench': PROGRAM, 'case': case.name, 'value': float(f'{statistics.median(ours):.4g}'),
             'unit': case.unit, 'against': str(side),
             'against_value': float(f'{statistics.median(theirs):.4g}'), 'ratio': round(middle, 3),
             'n': len(ratios), 'spread': round((max(ratios) - min(ratios)) / middle, 3)}
    target = case.targets.get(side.name)
    if target is not None:
        found.update(target=target, met=middle >= target)
    return found


def skipped(case, side, why):
    print(f'peers: {case}: beside {side}: skipped: {why}', file=sys.stderr, flush=True)


def compare(case, ours, others, measure, turns):
    """One turn of every side that is not counted, then `turns` that are, each second one in reverse.
    `measure(side)` gives a side's value. Others that fail are left out; the lines are printed and
    returned. A failure of ours is raised."""
    sides = [ours, *others]
    values = {side: [] for side in sides}
    for n in range(turns + 1):
        for side in sides if n % 2 else reversed(sides):
            if side not in values:
                continue
            try:
                with side.turn():
                    value = measure(side)
            except Failed as e:
                if side is ours:
                    raise Failed(f'{case.name}: {side}: {e}') from None
                skipped(case.name, side, e)
                del values[side]
                continue
            if n:
                values[side].append(value)
    lines = [line(case, values[ours], side, values[side]) for side in others if side in values]
    for each in lines:
        print(json.dumps(each), flush=True)
    return lines
