"""The record of bench/gate.py: ratios by machine and case, and what has fallen. It runs nothing.

A record is {"machines": {MACHINE: {CASE: RATIO}}}, since a ratio of one CPU says little of another.
"""
import json
import os
import re

FALL = 0.15  # a ratio may be so much lower than its record
RENEW = 'bench/gate.py --record renews it, on a machine that does nothing else'


class GateError(Exception):
    """There is nothing to compare with; the text says what to do."""


def machine():
    """The kind of machine: its CPU and how many of them."""
    with open('/proc/cpuinfo') as info:
        found = dict(re.findall(r'^(model name|cpu family|model)\s*: (.*)$', info.read(), re.M))
    return f"{found.get('model name', 'unknown CPU')}, family {found.get('cpu family', '?')}, " \
           f"model {found.get('model', '?')}, {len(os.sched_getaffinity(0))} CPUs"


def name_of(figure):
    """A case and what it is beside, without the peer's version and what is in parentheses: a new version
    of a peer or a new format of ours is no reason to forget what we were."""
    peer = ' '.join(word for word in figure['against'].split() if not word[0].isdigit())
    case = re.sub(r' \(.*\)', '', figure['case'])
    return f"{figure['bench']}: {case} / {peer}"


def keep(found, figure, cases, peer, cpu):
    """Adds a figure to `found`, by name, if its case is one of `cases` and it is beside `peer`; by its CPU
    time where that is what counts. Its spread stays that of the clock."""
    if not re.match(cases, figure['case']) or not figure['against'].startswith(peer):
        return
    if cpu:
        if not figure.get('cpu') or not figure.get('against_cpu'):
            raise GateError(f"{figure['bench']}: {figure['case']}: it says no CPU time")
        figure = {**figure, 'case': figure['case'] + ', CPU time',
                  'ratio': round(figure['against_cpu'] / figure['cpu'], 3)}
    found[name_of(figure)] = figure


def read(path, kind):
    """The ratios of this kind of machine."""
    try:
        machines = json.loads(path.read_text())['machines']
        ratios = machines.get(kind)
    except FileNotFoundError:
        raise GateError(f'no record {path}: {RENEW}') from None
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise GateError(f'{path} is no record ({type(e).__name__}: {e}): {RENEW}') from None
    if not ratios:
        raise GateError(f'{path} has no record of this machine ({kind}): {RENEW}')
    wrong = [name for name, ratio in ratios.items() if not isinstance(ratio, (int, float)) or ratio <= 0]
    if wrong:
        raise GateError(f'{path}: {wrong[0]}: want a ratio above 0: {RENEW}')
    return ratios


def write(path, kind, ratios):
    """Replaces the ratios of this kind of machine; those of others stay."""
    if not ratios:
        raise GateError('nothing was measured: the record stays as it is')
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError:
        record = {'machines': {}}
    record['machines'][kind] = dict(sorted(ratios.items()))
    path.write_text(json.dumps(record, indent=2) + '\n')


def faults(recorded, now):
    """What has fallen by more than FALL, was not measured, or has no record, a line each."""
    found = []
    for name, was in recorded.items():
        if name not in now:
            found.append(f'{name}: was {was:.3g}, and was not measured: its peer is missing or has failed, or '
                         f'the case is gone; {RENEW}')
        elif now[name] < was * (1 - FALL):
            found.append(f'{name}: fell from {was:.3g} to {now[name]:.3g}, by {100 * (1 - now[name] / was):.0f} %: '
                         f'{100 * FALL:.0f} % are allowed')
    found += [f'{name}: {now[name]:.3g}, and has no record: {RENEW}' for name in now if name not in recorded]
    return found


def lines(recorded, figures):
    """Figures as benchmarks print them: each ratio beside its record."""
    for name, figure in figures.items():
        if name in recorded:
            part = figure['ratio'] / recorded[name]
            yield {'bench': 'gate', 'case': name, 'value': figure['ratio'], 'unit': 'x', 'against': 'its record',
                   'against_value': recorded[name], 'ratio': round(part, 3), 'n': figure['n'],
                   'spread': figure['spread'], 'target': 1 - FALL, 'met': part >= 1 - FALL}
