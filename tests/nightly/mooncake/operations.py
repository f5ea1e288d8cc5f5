"""Seeded operations for differential.py: lists of a method and its arguments, as worker.py takes them."""
import random

OUT, INTO, SPARE = 1 << 18, 1 << 18, 1 << 16  # as worker.py has them
KEYS = [f'k{n}' for n in range(20)] + ['p/a', 'p/b', 'p/a/c', 'ключ', 'with space', 'a+b', 'K1']
ODD_KEYS = ['', 'x' * 1024, 'x' * 1025, 'new\nline']
PATTERNS = ['^p/', 'a', '^k1', 'k[0-3]$', 'no such', '', '.*', '[', '(', 'a+', '(?i)K1', '^K', r'\d\d',
            'ключ', 'a|b', '^(p|k)/', 'k1(?=2)', '*']


class Operations:
    """Calls of `store`."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.values = 0

    # ---- arguments

    def key(self):
        r = self.r.random()
        return self.r.choice(ODD_KEYS) if r < 0.005 else self.r.choice(KEYS)

    def keys(self, most=6):
        n = self.r.choices(range(most + 1), [1] + [6] * most)[0]
        return [self.key() for _ in range(n)]

    def size(self):
        kind = self.r.random()
        if kind < 0.03:
            return 0
        return self.r.randrange(1, 200) if kind < 0.7 else self.r.randrange(1, 20_000)

    def value(self):
        self.values += 1
        return {'b': [self.values, self.size()]}

    def config(self, of=1):
        r = self.r.random()
        if r < 0.8:
            return []
        made = self.r.choice([
            {'replica_num': 1}, {'replica_num': 2}, {'replica_num': 0},
            {'soft_pin_action': 'ENABLE'}, {'soft_pin_action': 'ENABLE', 'soft_pin_ttl_ms': 60_000},
            {'soft_pin_action': 'DISABLE'}, {'soft_pin_ttl_ms': 1000}, {'group_ids': ['g'] * (of + 1)},
            {'soft_pin_action': 'ENABLE', 'soft_pin_ttl_ms': 10**12},
            {'preferred_segment': 'nobody:1'}, {'preferred_segments': ['nobody:1', 'x:2']},
            {'prefer_alloc_in_same_node': True}, {'nof_replica_num': 1}, {'dfs_replica_num': 1}])
        return [{'c': made}]

    def source(self, size=None):
        """Address and size that a put reads."""
        size = self.size() if size is None else size
        if self.r.random() < 0.03:
            return {'at': OUT + INTO + self.r.randrange(100)}, min(size, SPARE - 200)  # not registered
        return {'at': self.r.randrange(OUT - size)}, size

    def place(self, size):
        if self.r.random() < 0.03:
            return {'at': OUT + INTO}
        return {'at': OUT + self.r.randrange(INTO - size)}

    def room(self, most=20_000):
        """How large a buffer is: mostly enough, sometimes not."""
        return self.r.choice([most, most, most, 300, 20, 1])

    # ---- calls

    def put(self):
        name = self.r.choice(['put', 'put', 'upsert'])
        return [name, self.key(), self.value(), *self.config()]

    def parts(self):
        n = self.r.choices(range(5), [1, 6, 6, 6, 6])[0]
        return [self.r.choice(['put_parts', 'upsert_parts']), self.key(), *(self.value() for _ in range(n))]

    def batch(self):
        keys = self.keys()
        n = len(keys) + (self.r.random() < 0.02)
        return [self.r.choice(['put_batch', 'put_batch', 'upsert_batch']), keys,
                [self.value() for _ in range(n)], *self.config(len(keys))]

    def put_from(self):
        at, size = self.source()
        return [self.r.choice(['put_from', 'put_from', 'upsert_from']), self.key(), at, size, *self.config()]

    def batch_from(self):
        keys = self.keys()
        places = [self.source() for _ in keys]
        if self.r.random() < 0.02:
            places.append(self.source())
        return [self.r.choice(['batch_put_from', 'batch_put_from', 'batch_upsert_from']), keys,
                [at for at, _ in places], [size for _, size in places], *self.config(len(keys))]

    def with_metadata(self):
        at, size = self.source()
        meta, meta_size = self.source(self.r.randrange(0, 64))
        return ['put_from_with_metadata', '' if self.r.random() < 0.01 else self.key(), at, meta, size, meta_size]

    def several(self):
        keys = self.keys()
        places = [[self.source() for _ in range(self.r.randrange(1, 4))] for _ in keys]
        return ['batch_put_from_multi_buffers', keys, [[at for at, _ in p] for p in places],
                [[size for _, size in p] for p in places], *self.config(len(keys))]

    def get(self):
        return [self.r.choice(['get', 'get', 'get_buffer', 'get_size', 'is_exist', 'get_replica_desc']),
                self.key()]

    def gets(self):
        return [self.r.choice(['get_batch', 'batch_get_buffer', 'batch_is_exist', 'batch_get_replica_desc']),
                self.keys()]

    def get_into(self):
        size = self.room()
        return ['get_into', self.key(), self.place(size), size]

    def _apart(self, n):
        """Places that do not overlap."""
        step = INTO // max(n, 1)
        return [{'at': OUT + n * step} for n in range(n)]

    def batch_into(self):
        keys = self.keys()
        n = len(keys) + (self.r.random() < 0.02)
        return ['batch_get_into', keys, self._apart(n), [self.room() for _ in range(n)]]

    def several_into(self):
        keys = self.keys()
        counts = [self.r.randrange(1, 4) for _ in keys]
        places = iter(self._apart(sum(counts)))
        return ['batch_get_into_multi_buffers', keys, [[next(places) for _ in range(n)] for n in counts],
                [[self.room(14_000) for _ in range(n)] for n in counts], self.r.random() < 0.2]

    def ranges(self):
        keys = self.keys(4)
        sizes = [[self.r.choice([1, 7, 50, 300]) for _ in range(self.r.randrange(1, 4))] for _ in keys]
        begins = [[self.r.choice([0, 0, 3, 100, 20_000]) for _ in s] for s in sizes]
        to, at = [], 0
        for s in sizes:
            to.append([at + 400 * n for n in range(len(s))])
            at += 400 * len(s)
        return ['get_into_ranges', [{'at': OUT}], [keys], [to], [begins], [sizes]]

    def get_session(self):
        keys = self.keys(4)
        sizes = [[self.r.choice([1, 7, 50]) for _ in range(self.r.randrange(0, 4))] for _ in keys]
        begins = [[self.r.choice([0, 0, 3, 100, 20_000]) for _ in s] for s in sizes]
        places = iter(self._apart(sum(map(len, sizes))))
        return ['get_into_session', keys, [[next(places) for _ in s] for s in sizes], sizes, begins]

    def put_session(self):
        keys = self.keys(4)
        parts = []
        for _ in range(self.r.randrange(0, 3)):
            sizes = [[self.r.randrange(1, 40) for _ in range(self.r.randrange(1, 3))] for _ in keys]
            to = [[self.r.randrange(0, 130) for _ in s] for s in sizes]
            parts.append([[[self.source(n)[0] for n in s] for s in sizes], sizes, to])
        whole = [[self.source(150)[0]] for _ in keys], [[150] for _ in keys], [[0] for _ in keys]
        return ['put_session', keys, [150] * (len(keys) + (self.r.random() < 0.02)), [list(whole), *parts],
                self.r.choice(['end', 'end', 'revoke']), self.config(len(keys))]

    def remove(self):
        force = self.r.random() < 0.6
        if self.r.random() < 0.3:
            return ['batch_remove', self.keys(), force]
        return ['remove', self.key(), force]

    def remove_some(self):
        if self.r.random() < 0.3:
            return ['remove_all', self.r.random() < 0.7]
        return ['remove_by_regex', self.r.choice(PATTERNS), self.r.random() < 0.7]

    def register(self):
        at = {'at': self.r.choice([0, OUT, OUT + INTO, OUT + INTO, 100])}
        if at['at'] == OUT + INTO and self.r.random() < 0.7:
            return self.r.choice([['register_buffer', at, SPARE], ['unregister_buffer', at]])
        return ['register_buffer', at, 4096] if at['at'] in (0, OUT) else ['unregister_buffer', {'at': 100}]

    def other(self):
        return self.r.choice([['grouped', ['g1', 'g2'], [self.value(), self.value()], {'c': {'group_ids': ['g', 'g']}}],
                              ['pinned', 'pin', self.value(), {'c': {'with_hard_pin': True}}], ['health_check'], ['fill_up', 1 << 20, KEYS], ['put', 'large', {'b': [1, 17 << 20]}]])

    def wrong(self):
        """Arguments of a wrong type."""
        return self.r.choice([
            ['put', 5, self.value()], ['put', self.key(), 'text'], ['put', self.key(), None], ['get', 5],
            ['get', None], ['put'], ['put_batch', self.key(), [self.value()]], ['get_batch', [1]],
            ['is_exist', {'raw': b''.hex() and None}], ['get_into', self.key(), 'a', 1],
            ['get_into', self.key(), {'at': OUT}, -1], ['put_from', self.key(), {'at': 0}, -1],
            ['batch_put_from', [self.key()], {'at': 0}, [1]], ['remove', self.key(), 'yes'],
            ['remove_by_regex', 3], ['register_buffer', 'a', 3], ['batch_is_exist', 3],
            ['put_parts', self.key(), 3], ['get_size', ['a']], ['put', self.key(), self.value(), 3]])

    def all(self, count):
        weights = {self.put: 14, self.parts: 5, self.batch: 8, self.put_from: 7, self.batch_from: 7,
                   self.with_metadata: 3, self.several: 6, self.get: 16, self.gets: 9, self.get_into: 7,
                   self.batch_into: 6, self.several_into: 5, self.ranges: 5, self.get_session: 3,
                   self.put_session: 3, self.remove: 9,
                   self.remove_some: 1.5, self.register: 1, self.wrong: 1, self.other: 0.5}
        for make in self.r.choices(list(weights), list(weights.values()), k=count):
            yield make()


class EngineOperations:
    """Calls of `engine`, of one that has a peer; `{"peer": n}` is an address n bytes into its memory."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def name(self):
        return self.r.choice(['127.0.0.1:1', 'nobody', '']) if self.r.random() < 0.01 else '{peer}'

    def sizes(self, n):
        return [self.r.choice([1, 8, 4096, 0 if self.r.random() < 0.02 else 3, self.r.randrange(1, 20_000)]) for _ in range(n)]

    def ends(self, kind, n):
        """Addresses here, addresses there, sizes: those that are written lie apart."""
        step = INTO // max(n, 1)
        sizes = self.sizes(n)
        read = [self.r.randrange(OUT - size) for size in sizes]
        written = [OUT + at * step for at in range(n)]
        if self.r.random() < 0.02 and n:  # what is read or written over there is not registered
            (read if kind == 'read' else written)[-1] = OUT + INTO + 100
        here, there = (written, read) if kind == 'read' else (read, written)
        return [{'at': at} for at in here], [{'peer': at} for at in there], sizes

    def one(self, kind):
        here, there, sizes = self.ends(kind, 1)
        return [self.name(), here[0], there[0], sizes[0]]

    def several(self, kind):
        here, there, sizes = self.ends(kind, self.r.choices(range(9), [1] + [5] * 8)[0])
        if self.r.random() < 0.01:
            sizes.append(1)
        return [self.name(), here, there, sizes]

    def note(self):
        return [f'name{self.r.randrange(100)}', self.r.choice(['', 'text', 'é', 'x' * 300])]

    def sync(self):
        kind = self.r.choice(['read', 'write'])
        if self.r.random() < 0.5:
            return [f'transfer_sync_{kind}', *self.one(kind)]
        return [f'batch_transfer_sync_{kind}', *self.several(kind)]

    def noted(self):
        kind = self.r.choice(['Read', 'Write'])
        call = [f'transfer_sync {kind}', *self.one(kind.lower())] if self.r.random() < 0.5 else [
            f'batch_transfer_sync {kind}', *self.several(kind.lower())]
        # Theirs sends the notice of a transfer that has failed too, after it, at any time.
        if self.r.random() < 0.6 and call[1] == '{peer}' and {'peer': OUT + INTO + 100} not in (
                call[3] if isinstance(call[3], list) else [call[3]]) and self.equal(call):
            call.append(self.note())
        return call

    def equal(self, call):
        return not isinstance(call[3], list) or len(call[2]) == len(call[3]) == len(call[4])

    def flying(self):
        kind = self.r.choice(['read', 'write'])
        if self.r.random() < 0.3:
            return ['checked', 'transfer_submit_write', *self.one('write')]
        return ['waited', f'batch_transfer_async_{kind}', *self.several(kind)]

    def memory(self):
        part = self.r.choice([0, OUT, OUT + INTO])
        return self.r.choice([
            ['register_memory', {'at': part}, SPARE], ['unregister_memory', {'at': part + 8}],
            ['batch_register_memory', [{'at': part}, {'at': OUT}], [SPARE, SPARE]],
            ['batch_register_memory', [{'at': part}, {'at': OUT + INTO}], [SPARE]], ['register_memory', {'at': 8}, 0],
            ['register_memory', {'at': part + 8}, 16], ['batch_register_memory', [], []], ['batch_unregister_memory', []],
            ['batch_unregister_memory', [{'at': 8}]]])

    def other(self):
        text = {'b': [1, 9]}
        return self.r.choice([
            ['managed', 4096, text, 9], ['managed', 1 << 20, text, 5], ['send_probe', '{peer}'],
            ['send_probe', '127.0.0.1:1'], ['send_probe', 'nobody'],
            ['get_first_buffer_address', '127.0.0.1:1'], ['get_notifies'], ['transfer_sync_write', '{peer}', 'x', 0, 1],
            ['transfer_sync_write', '{peer}', {'at': 0}, {'peer': OUT}, -1], ['transfer_sync_write', '{peer}'],
            ['register_memory', 'x', 1], ['get_batch_transfer_status', []]])

    def all(self, count):
        weights = {self.sync: 10, self.noted: 6, self.flying: 6, self.memory: 0.3, self.other: 0.4}
        for make in self.r.choices(list(weights), list(weights.values()), k=count):
            yield make()
