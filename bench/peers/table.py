#!/usr/bin/env python3
"""table.py FILE: figures of bench/run peers (a JSON line each) as tables of docs/results.md: a row a
case, and for each peer its value and ours divided by it."""
import json
import sys


def value(figure, which):
    return f"{figure[which]:,.4g} {figure['unit']}" if figure[which] < 1e4 else f"{figure[which]:,.0f} {figure['unit']}"


def cell(figure):
    """A peer's value and the ratio; in bold where we are behind what is wanted."""
    text = f"{figure['ratio']:.2f}"
    return f"{value(figure, 'against_value')}, {'**' + text + '**' if figure.get('met') is False else text}"


def tables(figures):
    """Cases that have the same peers share a table."""
    cases = {}
    for figure in figures:
        cases.setdefault(figure['case'], {})[figure['against']] = figure
    groups = {}
    for case, beside in cases.items():
        groups.setdefault(tuple(sorted(beside)), []).append((case, beside))
    for peers, rows in groups.items():
        yield '| case | mc | ' + ' | '.join(peers) + ' |'
        yield '|---' * (len(peers) + 2) + '|'
        for case, beside in rows:
            ours = value(next(iter(beside.values())), 'value')
            yield f"| {case} | {ours} | " + ' | '.join(cell(beside[peer]) for peer in peers) + ' |'
        yield ''


def main():
    with open(sys.argv[1]) as file:
        print('\n'.join(tables(json.loads(line) for line in file if line.startswith('{'))))


if __name__ == '__main__':
    main()
