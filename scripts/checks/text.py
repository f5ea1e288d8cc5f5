"""Banned calls, heavy headers, and how long files, lines and functions are."""
import re

LINES_MAX, COLUMNS_MAX, FUNCTION_MAX = 600, 100, 70
BANNED = {  # pattern: (why, files that may)
    r'(steady|system|high_resolution)_clock::now|\bclock_gettime\b':
        ('take Time now', r'^base/time\.'),
    r'\b(sleep_for|sleep_until|usleep|nanosleep|sleep\()':
        ('wait on the loop or a condition', r'^$'),
    r'\bgetenv\b|\benviron\b':
        ('options come from flags, environment and file in cmd', r'^cmd/(command|daemon)'),
    r'\b(rand|srand|random_device)\b': ('use base/random.h with a seed', r'^base/random'),
    r'\bstd::regex\b|\bdetach\(\)': ('not in this project', r'^$'),
    r'\bvolatile\b': ('for the order of instructions in kernels alone', r'^device/kernels/(tensor|tile_products)'),
    r'\b[Jj]son::(sax_)?parse\b|\bjson::accept\b':
        ('parse_json() of base/json.h has limits', r'^base/json\.cc'),
    r'\b(TODO|FIXME|XXX)\b': ('finish it, or leave it out', r'^$'),
}
HEAVY = {  # header: files that may include it
    r'CLI/': r'^cmd/command\.cc$',
    r'nlohmann/json\.hpp': r'^base/json\.h$',
    r'nlohmann/json_fwd\.hpp': r'^base/json_fwd\.h$',
    r'base/json\.h': r'\.cc$',
    r'spdlog/': r'^base/log\.cc$',
    r'msgpack': r'^wire/.*\.cc$',
    r'zmq': r'^(io/loop\.cc|rpc/)',
    r'event2?[/.]': r'^(http|tls)/.*\.cc$',
    r'boost/': r'^http/parser\.cc$',
    r'pcre2': r'^model/tokens/regex\.cc$',
    r'utf8proc': r'^model/tokens/unicode\.cc$',
    r'hwloc': r'^topo/discover/.*\.cc$',
    r'liburing': r'^io/uring',
    r'infiniband/': r'^xfer/transports/rdma/',
    r'cuda|mma': r'^device/kernels/',
}
OPENS = re.compile(r'[A-Za-z~].*\)( const| noexcept| override)*( :.*)? \{$|    .*\) (const )?\{$')


def functions(lines):
    """(line number, length) of function bodies that start at column 0 and end at a '}' there."""
    start = None
    for n, line in enumerate(lines, 1):
        if OPENS.match(line) and not line.startswith(('namespace', 'class', 'struct', 'enum')):
            if not line.startswith('    '):
                start = n
            elif start is None and lines[n - 2].endswith((',', '(')):  # not an `if` in a class
                start = n
        if line == '}' and start:
            yield start, n - start + 1
            start = None


def check_sizes(source, faults):
    if len(source.lines) > LINES_MAX:
        faults.append(f'{source.path}: {len(source.lines)} lines, {LINES_MAX} at most: '
                      'split it by topic')
    for n, line in enumerate(source.lines, 1):
        if len(line) > COLUMNS_MAX:
            faults.append(f'{source.path}:{n}: {len(line)} columns, {COLUMNS_MAX} at most')
    for start, length in functions(source.lines) if source.product else ():
        if length > FUNCTION_MAX:
            faults.append(f'{source.path}:{start}: function of {length} lines, '
                          f'{FUNCTION_MAX} at most')
    if source.product and source.suffix == 'h' and '\n#pragma once' not in '\n' + source.text:
        faults.append(f'{source.path}: no #pragma once')


def check_banned(source, faults):
    for pattern, (why, allowed) in BANNED.items():
        if not source.product and 'sleep' not in pattern or re.search(allowed, source.name):
            continue
        for found in re.finditer(pattern, source.text):
            line = source.lines[source.line_at(found.start()) - 1]
            if 'TODO' in pattern or found[0] in line.split('//')[0]:
                faults.append(f'{source.path}:{source.line_at(found.start())}: {found[0]}: {why}')


def check_heavy(source, faults):
    for n, _, include in source.includes if source.product else ():
        for pattern, allowed in HEAVY.items():
            if re.match(pattern, include) and not re.search(allowed, source.name):
                faults.append(f'{source.path}:{n}: {include} is heavy: only in {allowed}')


def check(sources, faults):
    for source in sources:
        check_sizes(source, faults)
        check_banned(source, faults)
        check_heavy(source, faults)


def check_scripts(root, faults):
    """A test waits for what it wants to see, by the functions of tests/common.inc."""
    for path in sorted(p for p in (root / 'tests').rglob('*') if p.suffix in ('.sh', '.inc')):
        if path == root / 'tests/common.inc':
            continue
        for n, line in enumerate(path.read_text().split('\n'), 1):
            if re.search(r'\bread -rt\b|^\s*sleep ', line):
                faults.append(f'{path.relative_to(root)}:{n}: a wait: until_true, pause_briefly '
                              'or fault_time')
