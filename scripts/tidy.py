#!/usr/bin/env python3
"""Checks what compilers do not: which folder may include which, banned calls, sizes.

Run by `make lint` and as a test. A line of LAYERS is an architectural decision.
"""
import pathlib
import re
import sys

LAYERS = {  # folder: the folders it may include, besides itself
    'base': '', 'io': 'base', 'wire': 'base', 'spec': 'base', 'model': 'base spec', 'trace': 'base',
    'topo': 'base io', 'device': 'base io', 'gpu': 'base io spec model device',
    'http': 'base io', 'load': 'base io http trace',
    'rpc': 'base io wire',
    'xfer': 'base io wire topo rpc device', 'store': 'base io wire rpc http xfer',
    'sched': 'base spec wire trace',
    'serve': 'base spec io wire rpc http xfer store model sched device gpu',
    'sim': 'base spec wire trace topo xfer store sched serve',
    'capi': 'base io wire spec model trace load topo device gpu http rpc xfer store sched serve sim',
    'cmd': 'base io wire spec model trace load topo device gpu http rpc xfer store sched serve sim',
}
TRANSPORTS = 'shm tcp rdma file cuda fault'.split()  # folders of lib/xfer: none includes another
BANNED = {  # pattern: (why, files that may)
    r'(steady|system|high_resolution)_clock::now|\bclock_gettime\b':
        ('take Time now', r'^base/time\.'),
    r'\b(sleep_for|sleep_until|usleep|nanosleep|sleep\()': ('wait on the loop or a condition', r'^$'),
    r'\bgetenv\b|\benviron\b': ('options come from flags, environment and file in cmd', r'^cmd/(command|daemon)'),
    r'\b(rand|srand|random_device)\b': ('use base/random.h with a seed', r'^base/random'),
    r'\bstd::regex\b|\bvolatile\b|\bdetach\(\)': ('not in this project', r'^$'),
    r'\b(TODO|FIXME|XXX)\b': ('finish it, or leave it out', r'^$'),
}
HEAVY = {  # header: files that may include it
    r'<CLI/': r'^cmd/command\.cc$',
    r'<nlohmann/json\.hpp>': r'^base/json\.h$',
    r'<nlohmann/json_fwd\.hpp>': r'^base/json_fwd\.h$',
    r'"base/json\.h"': r'\.cc$',
    r'<spdlog/': r'^base/log\.cc$',
    r'<msgpack': r'^wire/.*\.cc$',
    r'<zmq': r'^(io/loop\.cc|rpc/)',
    r'<event2?[/.]': r'^http/.*\.cc$',
    r'<http_parser': r'^http/parser\.cc$',
    r'<hwloc': r'^topo/.*\.cc$',
    r'<liburing': r'^io/uring',
    r'<infiniband/': r'^xfer/rdma/',
    r'<(cuda|mma)': r'^device/kernels/',
}
# A file that says "Pure:" in its opening comment decides and never waits; sim and live share it.
IMPURE = re.compile(r'#include ("(io|rpc(?!/membership)|http)/|'
                    r'<(thread|mutex|atomic|condition_variable|fstream|zmq|sys/|unistd|fcntl))')
LINES_MAX, COLUMNS_MAX, FUNCTION_MAX = 600, 100, 70


def functions(lines):
    """(line number, length) of function bodies that start at column 0 and end at a '}' there."""
    start = None
    for n, line in enumerate(lines, 1):
        if re.match(r'[A-Za-z~].*\)( const| noexcept| override)*( :.*)? \{$|    .*\) (const )?\{$', line) \
                and not line.startswith(('namespace', 'class', 'struct', 'enum')):
            if not line.startswith('    '):
                start = n
            elif start is None and lines[n - 2].endswith((',', '(')):  # not an `if` in a class
                start = n
        if line == '}' and start:
            yield start, n - start + 1
            start = None


def layer_faults(rel, layer, include):
    other = include.split('/')[0]
    if other in LAYERS and other != layer and other not in LAYERS[layer].split():
        return f'{layer} may not include {other}'
    parts = rel.split('/')
    if layer == 'xfer' and len(parts) > 2 and parts[1] in TRANSPORTS:
        target = include.split('/')
        if len(target) > 2 and target[0] == 'xfer' and target[1] in TRANSPORTS and target[1] != parts[1]:
            return f'transport {parts[1]} may not include transport {target[1]}'
    return None


def check_file(root, path, faults):
    rel = str(path.relative_to(root)).removeprefix('lib/')
    layer = rel.split('/')[0]
    lines = path.read_text().rstrip('\n').split('\n')
    pure = any('Pure:' in line for line in lines[:20])
    product = layer in LAYERS
    if len(lines) > LINES_MAX:
        faults.append(f'{rel}: {len(lines)} lines, {LINES_MAX} at most: split it by topic')
    if product:
        for start, length in functions(lines):
            if length > FUNCTION_MAX:
                faults.append(f'{rel}:{start}: function of {length} lines, {FUNCTION_MAX} at most')
        if path.suffix == '.h' and not any(line.startswith('#pragma once') for line in lines):
            faults.append(f'{rel}: no #pragma once')
    for n, line in enumerate(lines, 1):
        if len(line) > COLUMNS_MAX:
            faults.append(f'{rel}:{n}: {len(line)} columns, {COLUMNS_MAX} at most')
        if pure and IMPURE.match(line):
            faults.append(f'{rel}:{n}: pure, yet includes {line[9:]}')
        include = re.match(r'#include ["<]([^">]+)[">]', line)
        if product and include:
            fault = layer_faults(rel, layer, include[1])
            if fault:
                faults.append(f'{rel}:{n}: {fault}')
            for pattern, allowed in HEAVY.items():
                if re.search(pattern, line) and not re.search(allowed, rel):
                    faults.append(f'{rel}:{n}: {include[1]} is heavy: only in {allowed}')
        code = line.split('//')[0] if 'TODO' not in line and 'FIXME' not in line else line
        for pattern, (why, allowed) in BANNED.items():
            found = re.search(pattern, code)
            if found and not re.search(allowed, rel) and (product or 'sleep' in pattern):
                faults.append(f'{rel}:{n}: {found[0]}: {why}')


def main(root):
    faults = []
    folders = [root / d for d in ('lib', 'cmd', 'tests', 'bench')]
    files = sorted(p for d in folders for p in d.rglob('*') if p.suffix in ('.h', '.cc', '.cu'))
    for path in files:
        check_file(root, path, faults)
    print('\n'.join(faults) or f'tidy: {len(files)} files')
    return bool(faults)


sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else '.').resolve()))
