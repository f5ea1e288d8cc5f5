#!/usr/bin/env python3
"""Odd machines as recorded /sys trees, made by chance and by hand, and mc-topo over each of them.

What tiers a machine has is worked out here from the definition (docs/topology.md), apart from the
code under test. Usage: odd_machines.py MC-TOPO FOLDER MACHINES
"""
import json
import os
import random
import subprocess
import sys
import xml.dom.minidom

TOPO, FOLDER = sys.argv[1], sys.argv[2]


class Machine:
    """A tree of bridges and functions, and what is expected of it."""

    def __init__(self, name):
        self.name, self.files, self.links = name, {}, {}
        self.nodes = {}     # id: CPUs
        self.gpus, self.nics = [], []
        self.next_bus, self.functions = 1, {}

    def node(self, number, cpus):
        self.nodes[number] = cpus
        self.files[f'devices/system/node/node{number}/cpulist'] = cpus
        self.files[f'devices/system/node/node{number}/meminfo'] = (
            f'Node {number} MemTotal: 65536 kB')

    def address(self, domain='0000', function=0):
        bus, self.next_bus = self.next_bus, self.next_bus + 1
        return f'{domain}:{bus // 32:02x}:{bus % 32:02x}.{function}'

    def function(self, path, address, kind, vendor, numa, local=None):
        """path: the addresses above, the host bridge first. numa None: the kernel has no such file."""
        base = 'devices/' + '/'.join(path + [address])
        self.files[base + '/class'] = kind
        self.files[base + '/vendor'] = vendor
        self.files[base + '/device'] = '0x1021'
        if numa is not None:
            self.files[base + '/numa_node'] = str(numa)
        if local is not None:
            self.files[base + '/local_cpulist'] = local
        self.links[f'bus/pci/devices/{address}'] = '../../../' + base
        self.functions[address] = base
        return base

    def bridge(self, path, numa, domain='0000'):
        address = self.address(domain)
        self.function(path, address, '0x060400', '0x8086', numa)
        return path + [address]

    def seen(self, numa):
        """The node that counts: -1 is the only node where there is one."""
        if numa is None or numa < 0:
            return next(iter(self.nodes)) if len(self.nodes) == 1 else -1
        return numa

    def gpu(self, path, numa, kind='0x030200', vendor='0x10de', domain='0000', **more):
        address = self.address(domain)
        self.function(path, address, kind, vendor, numa, **more)
        self.gpus.append({'pci': address, 'path': path, 'numa': self.seen(numa)})
        return address

    def nic(self, path, numa, name, states=('4: ACTIVE',), address=None, domain='0000', **more):
        if address is None:
            address = self.address(domain)
            self.function(path, address, '0x020700', '0x15b3', numa, **more)
        self.rdma(name, self.functions[address], states)
        self.nics.append({'name': name, 'path': path, 'numa': self.seen(numa), 'placed': True,
                          'usable': any('ACTIVE' in s for s in states)})
        return address

    def virtual(self, name, numa=None):
        """Software RDMA: below no PCI function."""
        base = f'devices/virtual/infiniband/{name}'
        for port in (1,):
            self.files[f'{base}/infiniband/{name}/ports/{port}/state'] = '4: ACTIVE'
        if numa is not None:
            self.files[f'{base}/numa_node'] = str(numa)
            self.links[f'{base}/infiniband/{name}/device'] = '../..'
        self.links[f'class/infiniband/{name}'] = f'../../{base}/infiniband/{name}'
        placed = numa is not None and numa >= 0
        self.nics.append({'name': name, 'path': [], 'numa': numa if placed else -1,
                          'placed': placed, 'usable': placed})

    def rdma(self, name, base, states):
        here = f'{base}/infiniband/{name}'
        self.files[f'{here}/node_type'] = '1: CA'
        for port, state in enumerate(states, 1):
            self.files[f'{here}/ports/{port}/state'] = state
            self.files[f'{here}/ports/{port}/rate'] = '400 Gb/sec (4X NDR)'
        self.links[f'class/infiniband/{name}'] = f'../../{here}'

    def write(self):
        root = os.path.join(FOLDER, self.name, 'sys')
        os.makedirs(os.path.join(root, 'devices'), exist_ok=True)
        for path, text in self.files.items():
            path = os.path.join(root, path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, 'w') as file:
                file.write(text + '\n')
        for path, target in self.links.items():
            path = os.path.join(root, path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(target, path)
        return os.path.dirname(root)

    # ---- what is expected

    def usable(self):
        return [n for n in self.nics if n['usable']]

    def gpu_tiers(self, gpu):
        def common(nic):
            depth = 0
            while (depth < min(len(gpu['path']), len(nic['path']))
                   and gpu['path'][depth] == nic['path'][depth]):
                depth += 1
            return depth
        near = [n for n in self.usable() if n['numa'] == gpu['numa']]
        best = max((common(n) for n in near), default=0)
        return [sorted(n['name'] for n in near if common(n) == best),
                sorted(n['name'] for n in near if common(n) != best),
                sorted(n['name'] for n in self.usable() if n not in near)]

    def host_tiers(self):
        return {k: [sorted(n['name'] for n in self.usable() if n['numa'] == k), [],
                    sorted(n['name'] for n in self.usable() if n['numa'] != k)]
                for k, cpus in self.nodes.items() if cpus}

    def nccl_xml(self):
        """The same machine as NCCL would dump it; None where that form cannot say it."""
        if any(not n['placed'] or not n['usable'] for n in self.nics) or not self.nodes:
            return None
        devices = [g['numa'] for g in self.gpus] + [n['numa'] for n in self.nics]
        if any(d not in self.nodes for d in devices):
            return None
        home = {}  # a bridge is in one place there, so it has one node
        for device in self.gpus + self.nics:
            for bridge in device['path']:
                if home.setdefault(bridge, device['numa']) != device['numa']:
                    return None
        out = ['<system version="1">']
        for number in sorted(self.nodes):
            mask = '00000001' if self.nodes[number] else '00000000'
            out.append(f'<cpu numaid="{number}" affinity="{mask}" arch="x86_64">')
            out += self.nccl_level(number, self.nccl_tree(number))
            out.append('</cpu>')
        return '\n'.join(out + ['</system>'])

    def nccl_tree(self, number):
        tree = {}
        for what, devices in (('gpu', self.gpus), ('nic', self.nics)):
            for device in devices:
                if device['numa'] != number:
                    continue
                level = tree
                for bridge in device['path']:
                    level = level.setdefault(bridge, {})
                level.setdefault('', []).append((what, device))
        return tree

    def nccl_level(self, number, tree):
        out = []
        for name, below in tree.items():
            if name == '':
                continue
            # A host bridge has no address there: what is below it keeps it as one of its own.
            bus = name if not name.startswith('pci') else name[3:] + ':1f.7'
            out.append(f'<pci busid="{bus}" class="0x060400">')
            out += self.nccl_level(number, below) + ['</pci>']
        by_function = {}
        for what, device in tree.get('', []):
            if what == 'gpu':
                out.append(f'<pci busid="{device["pci"]}" class="0x030200" vendor="0x10de">'
                           f'<gpu dev="{self.gpus.index(device)}"/></pci>')
            else:
                by_function.setdefault(device['pci'], []).append(device)
        for pci, devices in by_function.items():
            out.append(f'<pci busid="{pci}" class="0x020700" vendor="0x15b3"><nic>')
            out += [f'<net name="{d["name"]}" port="1" speed="400000" gdr="1"/>' for d in devices]
            out.append('</nic></pci>')
        return out


# ---- machines

def by_chance(seed):
    r = random.Random(seed)
    m = Machine(f'chance-{seed}')
    ids = {0: [0], 1: [0, 1], 2: [0, 8], 3: [1, 3, 5, 7], 4: [0, 1, 2, 3]}[r.randrange(5)]
    cpu = 0
    for number in ids:
        empty = number != ids[0] and r.random() < 0.2
        m.node(number, '' if empty else f'{cpu}-{cpu + 1}')
        cpu += 2
    names = iter(r.sample(['mlx5_0', 'mlx5_1', 'mlx5_10', 'mlx5_2', 'rdmap79s0', 'hns_0', 'bnxt_re0',
                           'mlx5_bond_0', 'irdma0', 'efa_0', 'ib0', 'roceo1', 'mlx4_0', 'x'], 14))
    domains = ['0000', '0000', '0001', '10000', '0033']
    for host in range(r.randint(0, 4)):
        domain, numa = r.choice(domains), r.choice(ids + [-1, None])
        host_bridge = f'pci{domain}:{0xe0 + host:02x}'
        places = [[host_bridge]]
        for _ in range(r.randint(0, 5)):
            above = r.choice(places)
            if len(above) < 8:
                places.append(m.bridge(above, numa, domain))
        for _ in range(r.randint(0, 3)):
            m.gpu(r.choice(places), numa if r.random() < 0.8 else r.choice(ids + [-1]),
                  kind=r.choice(['0x030200', '0x030000', '0x120000', '0x038000']),
                  domain=domain, local=r.choice([None, '0-1']))
        for _ in range(r.randint(0, 3)):
            name = next(names, None)
            if name is None:
                break
            states = [r.choice(['4: ACTIVE', '4: ACTIVE', '1: DOWN', '2: INIT'])
                      for _ in range(r.randint(1, 2))]
            path = r.choice(places)
            pci = m.nic(path, numa if r.random() < 0.8 else r.choice(ids), name, states,
                        domain=domain, local=r.choice([None, '0-1']))
            second = next(names, None) if r.random() < 0.15 else None
            if second:  # two RDMA devices on one function
                at = m.files.get(m.functions[pci] + '/numa_node')
                m.nic(path, None if at is None else int(at), second, ('4: ACTIVE',), address=pci)
    if r.random() < 0.2:
        m.virtual('rxe0')
    return m


def by_hand():
    def new(name, nodes):
        m = Machine(name)
        for number, cpus in nodes.items():
            m.node(number, cpus)
        return m

    yield new('nothing', {0: '0-1'})

    m = Machine('no-numa')  # a kernel without NUMA, and devices whose numa_node is -1
    m.files['devices/system/cpu/online'] = '0-3'
    m.nodes = {0: '0-3'}
    root = m.bridge(['pci0000:00'], -1)
    m.gpu(root, -1)
    m.nic(root, -1, 'mlx5_0')
    m.nic(['pci0000:00'], -1, 'mlx5_1')
    yield m

    m = new('unknown-nodes', {0: '0', 1: '1'})  # -1 on a machine of two nodes
    root = m.bridge(['pci0000:00'], -1)
    m.gpu(root, -1)
    m.gpu(root, 0)
    m.nic(root, -1, 'mlx5_0')
    m.nic(root, 1, 'mlx5_1')
    yield m

    m = new('virtual-functions', {0: '0', 1: '1'})  # .0 is the card, .1 to .3 its functions
    root = m.bridge(['pci0000:20'], 1)
    m.gpu(root, 1)
    for i in range(4):
        address = f'0000:21:00.{i}'
        m.function(root, address, '0x020000', '0x15b3', 1)
        m.nic(root, 1, f'mlx5_{i}', address=address)
    yield m

    m = new('bond', {0: '0', 1: '1'})  # two ports of one card as one RDMA device; one port is down
    root = m.bridge(['pci0000:20'], 0)
    m.gpu(root, 0)
    pci = m.nic(root, 0, 'mlx5_bond_0', ('4: ACTIVE', '1: DOWN'))
    for name in ('eth0', 'eth1', 'bond0'):
        where = ('devices/virtual/net/' if name == 'bond0' else m.functions[pci] + '/net/') + name
        m.files[where + '/operstate'] = 'up'
        m.links[f'class/net/{name}'] = f'../../{where}'
    m.nic(m.bridge(['pci0000:20'], 0), 0, 'mlx5_2', ('1: DOWN', '1: DOWN'))
    yield m

    m = new('other-roots', {0: '0', 1: '1'})  # each GPU behind a root complex of its own, NICs too
    for i in range(4):
        m.gpu(m.bridge([f'pci0000:{i + 1}0'], i // 2), i // 2)
    for i in range(2):
        m.nic(m.bridge([f'pci0000:{i + 8}0'], i), i, f'mlx5_{i}')
    yield m

    m = new('host-bridge-only', {0: '0', 1: '1'})  # what they share is the host bridge
    m.gpu(m.bridge(['pci0000:10'], 0), 0)
    m.nic(m.bridge(['pci0000:10'], 0), 0, 'near')
    m.nic(m.bridge(['pci0000:20'], 0), 0, 'far')
    m.nic(m.bridge(['pci0000:10'], 1), 1, 'other')  # the same root, by the kernel on another node
    yield m

    m = new('deep', {0: '0', 1: '1'})  # a tower of switches, NICs on every floor
    path = ['pci0000:10']
    for i in range(12):
        path = m.bridge(path, 0)
        m.nic(path, 0, f'mlx5_{i}')
    m.gpu(path, 0)
    m.gpu(path[:4], 0)
    yield m

    m = new('same-address', {0: '0', 1: '1'})  # bus numbers repeat in each domain
    for i, domain in enumerate(('0000', '0001', '0002', '10000')):
        root = [f'pci{domain}:80']
        m.function(root, f'{domain}:80:01.0', '0x060400', '0x8086', i % 2)
        root = root + [f'{domain}:80:01.0']
        m.next_bus = 0x900
        m.gpu(root, i % 2, domain=domain)
        m.nic(root, i % 2, f'mlx5_{i}', domain=domain)
    yield m

    m = new('memory-only', {0: '0-1', 8: '2-3', 252: '', 253: ''})
    for numa, domain in ((0, '0004'), (8, '0035')):
        root = m.bridge([f'pci{domain}:00'], numa, domain)
        m.gpu(root, numa, domain=domain)
        m.nic(root, numa, f'mlx5_{numa}', domain=domain)
    m.gpu(m.bridge(['pci0006:00'], 252, '0006'), 252, domain='0006')  # on a node without CPUs
    yield m

    m = new('gpus-without-nics', {0: '0', 1: '1'})
    for i in range(8):
        m.gpu(m.bridge([f'pci0000:{i + 1}0'], i // 4), i // 4)
    yield m

    m = new('nics-without-gpus', {0: '0', 1: '1'})
    m.nic(m.bridge(['pci0000:10'], 0), 0, 'mlx5_0')
    m.virtual('siw0')
    yield m

    m = new('companions', {0: '0'})  # a console, the sound of a GPU, a GPU's USB port: none is a GPU
    root = m.bridge(['pci0000:10'], 0)
    m.function(root, '0000:77:00.0', '0x030000', '0x1a03', 0)
    m.function(root, '0000:77:00.1', '0x040300', '0x10de', 0)
    m.function(root, '0000:77:00.2', '0x0c0330', '0x10de', 0)
    m.gpu(root, 0)
    m.nic(root, 0, 'mlx5_0')
    yield m


# ---- running it

def run(*words, ends=(0,)):
    done = subprocess.run([TOPO, *words], capture_output=True, text=True, timeout=60)
    if done.returncode not in ends:
        raise SystemExit(f'{" ".join(words)}: exit {done.returncode}: {done.stderr}')
    return done.stdout


def as_json(*words, ends=(0,)):
    return json.loads(run(*words, '--output', 'json', ends=ends))


def same(what, got, want):
    if got != want:
        raise SystemExit(f'{what}: {got} where {want} is right')


def compare(m, where, *source):
    table = as_json('tiers', *source)
    got = {g['pci']: [sorted(t) for t in g['tiers']] for g in table['gpus']}
    same(f'{where}: gpus', got, {g['pci']: m.gpu_tiers(g) for g in m.gpus})
    got = {h['numa']: [sorted(t) for t in h['tiers']] for h in table['hosts']}
    same(f'{where}: hosts', got, m.host_tiers())
    same(f'{where}: left out', sorted(n['name'] for n in table['left_out']),
         sorted(n['name'] for n in m.nics if not n['usable']))
    return table


def forms(m, folder):
    """Every verb in every form over one machine."""
    source = ('--sysfs', folder)
    shown = as_json('show', *source)
    same(f'{m.name}: gpus shown', [g['pci'] for g in shown['gpus']],
         [g['pci'] for g in as_json('tiers', *source)['gpus']])
    text = run('show', *source)
    for nic in m.nics:
        same(f'{m.name}: {nic["name"]} in the text', f'rdma {nic["name"]},' in text, True)
    xml.dom.minidom.parseString(run('show', *source, '--svg'))
    dot = run('show', *source, '--dot')
    same(f'{m.name}: braces of the graph', dot.count('{'), dot.count('}'))
    matrix = as_json('matrix', *source)['locations']
    for i, gpu in enumerate(shown['gpus']):
        mine = next(g for g in m.gpus if g['pci'] == gpu['pci'])
        same(f'{m.name}: matrix', [sorted(t) for t in matrix[f'cuda:{i}']['tiers']],
             m.gpu_tiers(mine))
    reference = json.loads(run('matrix', *source, '--form', 'reference'))
    for place, tiers in matrix.items():
        same(f'{m.name}: {place}', reference[place],
             [tiers['tiers'][0], tiers['tiers'][1] + tiers['tiers'][2]])
    run('matrix', *source)
    findings = as_json('check', *source, ends=(0, 1))['findings']
    wrong = any(f['severity'] == 'wrong' for f in findings)
    run('check', *source, ends=(1,) if wrong else (0,))
    same(f'{m.name}: a remedy each', all(f['remedy'] for f in findings), True)
    down = {n['name'] for n in m.nics if not n['usable'] and n['placed']}
    said = {f['where'].split()[0] for f in findings if f['id'] in ('port-down', 'port-not-active')}
    same(f'{m.name}: ports down', down - said, set())
    if m.usable():
        pairs = as_json('pair', folder, folder)
        same(f'{m.name}: pairs', bool(pairs), True)


def copies(m, folder):
    """The same machine by way of a recording, JSON, and NCCL's XML."""
    copy = folder + '.copy'
    run('capture', '--sysfs', folder, copy)
    same(f'{m.name}: diff', run('diff', folder, copy), 'no difference\n')
    compare(m, f'{m.name}, recorded again', '--sysfs', copy)
    with open(folder + '.json', 'w') as file:
        file.write(run('show', '--sysfs', folder, '--output', 'json'))
    same(f'{m.name}: diff with JSON', run('diff', folder, folder + '.json'), 'no difference\n')
    for nic in m.nics:
        for address, base in m.functions.items():
            if f'../../{base}/infiniband/' in m.links[f'class/infiniband/{nic["name"]}']:
                nic['pci'] = address
    text = m.nccl_xml()
    if text is None:
        return False
    with open(folder + '.xml', 'w') as file:
        file.write(text)
    compare(m, f'{m.name}, as NCCL XML', '--xml', folder + '.xml')
    return True


def main():
    machines = list(by_hand()) + [by_chance(seed) for seed in range(int(sys.argv[3]))]
    as_xml = 0
    for m in machines:
        folder = m.write()
        compare(m, m.name, '--sysfs', folder)
        forms(m, folder)
        as_xml += copies(m, folder)
    gpus, nics = sum(len(m.gpus) for m in machines), sum(len(m.nics) for m in machines)
    same('machines worth the name', gpus > len(machines) and nics > len(machines), True)
    same('machines that are XML too', as_xml > len(machines) // 10, True)
    print(f'{len(machines)} machines, {gpus} GPUs, {nics} RDMA devices, {as_xml} as XML too')


main()
