"""lib/layers.txt against the includes; files a folder; circles of units."""
import collections

FILES_MAX = 30


def check_includes(layers, sources, faults):
    if layers.faults:
        faults += [f'lib/layers.txt:{fault}' for fault in layers.faults]
        return
    tops = {f.name for f in layers.tops()}
    homes = {s.folder: layers.home(s.folder) for s in sources if s.product}
    for folder, home in homes.items():
        if home is None:
            faults.append(f'{folder}: this folder has no line in lib/layers.txt')
    for source in sources:
        home = homes.get(source.folder) if source.product else None
        if home is None:
            continue
        for n, _, include in source.includes:
            directory = include.rpartition('/')[0]
            if directory.split('/')[0] not in tops:
                continue
            target = homes.get(directory)
            if directory not in homes:
                faults.append(f'{source.path}:{n}: {include}: no such folder')
            elif target and not layers.allows(home, target):
                faults.append(f'{source.path}:{n}: {home.name} may not include {target.name}')
    for folder, entry in layers.unused():
        faults.append(f'lib/layers.txt:{folder.line}: {folder.name} never includes {entry}: '
                      'take the entry away')
    for folder in layers.folders.values():
        if not any(layers.home(h) is folder or h.startswith(folder.name + '/') for h in homes):
            faults.append(f'lib/layers.txt:{folder.line}: {folder.name} has no source file')


def check_sizes(root, faults):
    for top in ('lib', 'cmd'):
        for folder in sorted(p for p in [root / top, *(root / top).rglob('*')] if p.is_dir()):
            files = sum(p.is_file() for p in folder.iterdir())
            if files > FILES_MAX:
                faults.append(f'{folder.relative_to(root)}: {files} files, {FILES_MAX} at most: '
                              'find the sub-folders it wants')


def unit_of(source, headers):
    """A file, its header and the header's private X_impl.h are one unit."""
    unit = f'{source.folder}/{source.stem}'
    public = unit.removesuffix('_impl')
    return public if public in headers else unit


def circles(graph):
    """The strongly connected components of more than one node (Tarjan, with a stack of its own)."""
    index, low, stack, on, found = {}, {}, [], set(), []
    for root in graph:
        work = [(root, None)] if root not in index else []
        while work:
            node, edges = work.pop()
            if edges is None:
                index[node] = low[node] = len(index)
                stack.append(node)
                on.add(node)
                edges = iter(sorted(graph[node]))
            for other in edges:
                if other not in index:
                    work += [(node, edges), (other, None)]
                    break
                if other in on:
                    low[node] = min(low[node], low[other])
            else:
                if low[node] == index[node]:
                    cut = stack.index(node)
                    component = stack[cut:]
                    del stack[cut:]
                    on.difference_update(component)
                    if len(component) > 1:
                        found.append(component)
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
    return found


def check_circles(sources, exceptions, faults):
    product = [s for s in sources if s.product]
    headers = {f'{s.folder}/{s.stem}' for s in product if s.suffix == 'h'}
    units = {s.name: unit_of(s, headers) for s in product}
    graph = collections.defaultdict(set)
    for source in product:
        graph[units[source.name]] |= {units[i] for _, _, i in source.includes if i in units}
    expected = set(exceptions.circles)
    for circle in circles(graph):
        if frozenset(circle) in expected:
            expected.discard(frozenset(circle))
        else:
            faults.append(f'these include each other in a circle: {" ".join(sorted(circle))}')
    for circle in expected:
        faults.append(f'{exceptions.path}:{exceptions.circles[circle]}: this circle is no more: '
                      'take the line away, or name the smaller one')
