#!/usr/bin/env python3
"""How the store grows: 1 to 64 clients of one node, and 1 to 16 nodes of one master with 16 clients,
puts and gets of one value a call, over shared memory. Each figure stands beside one client, or one
node, in turns with it. --svg FILE draws throughput and p99 on one page. bench/run scale."""
import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import scale_plot  # noqa: E402

BUILD = pathlib.Path(os.environ.get('MC_BIN', pathlib.Path(__file__).resolve().parent.parent / 'build/release'))
CLIENTS, NODES, CLIENTS_OF_NODES = (1, 4, 16, 64), (1, 4, 16), 16
VALUE, COUNT = '16KiB', 2048
START_S = 60


@contextlib.contextmanager
def daemon(folder, name, *command):
    """A daemon by that name, and the control address that it announced."""
    said = folder / f'{name}.json'
    with open(folder / f'{name}.log', 'w', encoding='utf-8') as log:
        child = subprocess.Popen([*map(str, command), '--listen', '127.0.0.1:0', '--http', '127.0.0.1:0',
                                  '--announce', str(said)], stdout=log, stderr=log)
    try:
        limit = time.monotonic() + START_S
        while not said.exists():
            if child.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(f'{name} did not start: ' + (folder / f'{name}.log').read_text()[-400:])
            time.sleep(0.02)
        yield json.loads(said.read_text())['control']
    finally:
        child.terminate()
        child.wait()


@contextlib.contextmanager
def pool(nodes):
    """The address of a master with so many nodes."""
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix='mc-scale.')))
        master = stack.enter_context(daemon(folder, 'master', BUILD / 'mc-master'))
        for i in range(nodes):
            stack.enter_context(daemon(folder, f'n{i}', BUILD / 'mc-store', 'serve', '--name', f'n{i}',
                                       '--master', master, '--size', '64MiB'))
        yield master


def load(master, clients, seconds):
    """{op: its JSON line} of one load."""
    done = subprocess.run([str(BUILD / 'mc-store'), 'bench', '--master', master, '--value', VALUE, '--count',
                           str(COUNT), '--threads', str(clients), '--for',
                           f'{round(1000 * seconds)}ms', '--near-cache', '0',
                           '--output', 'json'], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f'mc-store bench: {done.stderr.strip()}')
    return {line['op']: line for line in map(json.loads, done.stdout.splitlines())}


def figures(what, alone, n, pairs):
    """A line an operation: the values a second of `n` beside those of one."""
    for op in ('put', 'get'):
        mine, one = ([turn[i][op]['values-per-s'] for turn in pairs] for i in (0, 1))
        ratios = [a / b for a, b in zip(mine, one)]
        ratio = statistics.median(ratios)
        yield {'bench': 'scale', 'case': f'{op} {VALUE}, {n} {what}', 'value': round(statistics.median(mine), 1),
               'unit': 'values/s', 'against': alone, 'against_value': round(statistics.median(one), 1),
               'ratio': round(ratio, 3), 'n': len(pairs), 'spread': round((max(ratios) - min(ratios)) / ratio, 3),
               'p99-us': statistics.median(turn[0][op]['p99-us'] for turn in pairs)}


def sweep(what, alone, counts, measure, turns):
    """{op: {count: (values a second, p99 in us)}}; prints the figures."""
    found = {'put': {}, 'get': {}}
    for n in counts:
        pairs = [measure(n) for _ in range(turns)]
        for line in figures(what, alone, n, pairs):
            print(json.dumps(line), flush=True)
            found[line['case'].split()[0]][n] = (line['value'], max(line['p99-us'], 1))
    return found


def measured(quick):
    """Clients of one node, then nodes of one master."""
    turns, seconds = (3, 0.3) if quick else (5, 1)
    with pool(1) as one:
        clients = sweep('clients of one node', 'one client', CLIENTS,
                        lambda n: (load(one, n, seconds), load(one, 1, seconds)), turns)
        nodes = {'put': {}, 'get': {}}
        for n in NODES:
            with pool(n) as many:
                part = sweep('nodes of one master', 'one node', (n,), lambda _, at=many: (
                    load(at, CLIENTS_OF_NODES, seconds), load(one, CLIENTS_OF_NODES, seconds)), turns)
            for op, line in part.items():
                nodes[op].update(line)
    return clients, nodes


def panels(clients, nodes):
    """What the page shows, for scale_plot.page."""
    def part(found, i):
        return {op: {n: pair[i] for n, pair in line.items()} for op, line in found.items()}
    return [(f'{VALUE} values a second, by clients of one node', part(clients, 0), False),
            ('p99 of a call in us, by clients of one node', part(clients, 1), True),
            (f'{VALUE} values a second, by nodes, {CLIENTS_OF_NODES} clients', part(nodes, 0), False),
            (f'p99 of a call in us, by nodes, {CLIENTS_OF_NODES} clients', part(nodes, 1), True)]


def main():
    parser = argparse.ArgumentParser(prog='bench/scale.py', description=__doc__)
    parser.add_argument('--quick', action='store_true', help='shorter and fewer turns')
    parser.add_argument('--svg', type=pathlib.Path, help='draw the page to this file')
    given = parser.parse_args()
    try:
        clients, nodes = measured(given.quick)
    except RuntimeError as e:
        print(f'scale: {e}', file=sys.stderr)
        return 1
    if given.svg:
        note = f'{len(os.sched_getaffinity(0))} CPUs for clients, master and nodes together'
        given.svg.write_text(scale_plot.page(panels(clients, nodes), note), encoding='utf-8')
    return 0


if __name__ == '__main__':
    sys.exit(main())
