"""worker.py store MASTER SEGMENT | engine: carries out calls of `mooncake`, one a line, and answers.

A line is a JSON list: a method and its arguments; an answer is one JSON value. The same program runs
over the real package and over mc.compat.mooncake (MC_COMPAT=1). In arguments, `{"b": [n, size]}` are
bytes that n chooses, `{"at": n}` is an address n bytes into memory of this process, `{"c": {...}}` is a
ReplicateConfig. Memory has three parts: what puts read and nobody writes, what gets write, which is
zero before each call, and a part that is not registered.
"""
import ctypes
import json
import os
import random
import sys
import time
import zlib

OUT, INTO, SPARE = 1 << 18, 1 << 18, 1 << 16  # bytes of each part
TEXT = 40  # bytes of an answer that are shown; the rest by size and CRC

if os.environ.get('MC_COMPAT'):
    import mc.compat.mooncake
    mc.compat.mooncake.install()

block = (ctypes.c_char * (OUT + INTO + SPARE + 4096))()
base = (ctypes.addressof(block) + 4095) & ~4095
ctypes.memmove(base, random.Random(7).randbytes(OUT), OUT)


def content(n, size):
    return random.Random(n).randbytes(size)


def given(word, config):
    if isinstance(word, list):
        return [given(w, config) for w in word]
    if isinstance(word, dict):
        (kind, value), = word.items()
        if kind == 'b':
            return content(*value)
        if kind == 'at':
            return base + value
        if kind == 'raw':
            return value
        made = config()
        for name, setting in value.items():
            if name == 'soft_pin_action':
                setting = type(made.soft_pin_action).__members__[setting]
            setattr(made, name, setting)
        return made
    return word


def shown(value):
    if hasattr(value, 'ptr'):
        return [value.size(), zlib.crc32(bytes(memoryview(value))), value.ptr() != 0]
    if isinstance(value, (bytes, bytearray, memoryview)):
        value = bytes(value)
        return f'{len(value)} bytes {zlib.crc32(value):08x}'
    if isinstance(value, (list, tuple)):
        return [shown(v) for v in value]
    if isinstance(value, dict):
        return {str(k): shown(v) for k, v in sorted(value.items())}
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if hasattr(value, 'is_memory_replica'):  # where a copy lies
        size = value.get_memory_descriptor().buffer_descriptor.size
        return [value.status.name, value.is_memory_replica(), value.is_disk_replica(), size]
    if hasattr(value, 'msg'):
        return [value.name, value.msg]
    return type(value).__name__


def into_crc():
    return zlib.crc32(ctypes.string_at(base + OUT, INTO + SPARE))


def fill_up(store, size, leased):
    """Puts values that stay until one fails. The code, and whether it took about as many as fit."""
    store.batch_is_exist(leased)  # a full pool evicts what nobody has looked at
    code, keys = 0, []
    while code == 0 and len(keys) < 1000:
        keys.append(f'fill-{len(keys)}')
        code = store.put(keys[-1], content(1, size))
        store.is_exist(keys[-1])
    after = [store.put('full', content(2, size)), store.put_batch(['full'], [content(2, size)]),
             store.is_exist('full'), store.is_exist(keys[0])]
    # Theirs evicts later what nobody has looked at, once for a full pool: it gets something to evict.
    store.remove(keys.pop(), True)
    keys += [f'victim-{n}' for n in range(40)]
    for key in keys[-40:]:
        store.put(key, b'evicted')
    time.sleep(0.3)
    for key in [*keys, 'full']:
        store.remove(key, True)
    return [code, len(keys) > 2, *after]


def get_into_session(store, keys, *parts):
    return [store.batch_get_session_start(keys), store.batch_get_into_multi_buffer_ranges(keys, *parts),
            store.batch_get_session_end(keys), store.batch_get_into_multi_buffer_ranges(keys, *parts)]


def put_session(store, keys, sizes, parts, ending, config):
    begun = store.batch_put_session_start(keys, sizes, *config)
    return [begun, *(store.batch_put_from_multi_buffer_ranges(keys, *part) for part in parts),
            getattr(store, f'batch_put_session_{ending}')(keys), store.batch_put_session_revoke(keys)]


class StoreSide:
    def __init__(self, master, segment):
        from mooncake.store import MooncakeDistributedStore, ReplicateConfig
        self.config = ReplicateConfig
        self.object = MooncakeDistributedStore()
        code = self.object.setup('127.0.0.1', 'P2PHANDSHAKE', int(segment), 16 << 20, 'tcp', '', master)
        assert code == 0, code
        self.reset()

    def reset(self):
        s = self.object
        s.remove_all(True)
        for at in range(base, base + OUT + INTO + SPARE, SPARE):
            s.unregister_buffer(at)
        return [s.register_buffer(base, OUT), s.register_buffer(base + OUT, INTO)]

    def call(self, name, words):
        if name in COMPOSED:
            return COMPOSED[name](self.object, *words)
        return getattr(self.object, name)(*words)


def pinned(store, key, value, config):
    return [store.put(key, value, config), store.remove(key), store.remove(key, True)]


def grouped(store, keys, values, config):
    return [store.put_batch(keys, values, config), store.get_size(keys[0]) > 0,
            store.batch_remove(keys), store.batch_remove(keys, True)]


COMPOSED = {'grouped': grouped, 'pinned': pinned, 'fill_up': fill_up, 'get_into_session': get_into_session, 'put_session': put_session}


class EngineSide:
    def __init__(self):
        from mooncake import engine
        self.config, self.module, self.object, self.ids = dict, engine, engine.TransferEngine(), {}
        assert self.object.initialize('127.0.0.1', 'P2PHANDSHAKE', 'tcp', '') == 0
        self.reset()

    def reset(self):
        self.object.get_notifies()
        for at in range(base, base + OUT + INTO + SPARE, SPARE):
            self.object.unregister_memory(at)
        return [self.object.register_memory(base, OUT), self.object.register_memory(base + OUT, INTO)]

    def call(self, name, words):
        e = self.object
        if name == 'where':
            return [f'127.0.0.1:{e.get_rpc_port()}', base]
        if name == 'memory':
            return into_crc()
        if name == 'waited':  # a batch by the words of its beginning, and how it ended
            number = getattr(e, words[0])(*words[1:])
            return [number > 0, e.get_batch_transfer_status([number]) if number > 0 else None]
        if name == 'checked':
            number = getattr(e, words[0])(*words[1:])
            state = e.transfer_check_status(number) if number > 0 else -1
            while state == 0:
                state = e.transfer_check_status(number)
            return [number > 0, state]
        if name == 'managed':
            at = e.allocate_managed_buffer(words[0])
            return [at > 0, e.write_bytes_to_buffer(at, *words[1:]),
                    e.read_bytes_from_buffer(at, words[2]), e.free_managed_buffer(at, words[0])]
        if name.startswith('transfer_sync ') or name.startswith('batch_transfer_sync '):
            name, kind = name.split()
            words.insert(4, getattr(self.module.TransferOpcode, kind))
            if len(words) > 5:
                words[5] = self.module.TransferNotify(*words[5])
        return getattr(e, name)(*words)


def main():
    side = StoreSide(*sys.argv[2:]) if sys.argv[1] == 'store' else EngineSide()
    out = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)  # the real package writes to both
    print(json.dumps('ready'), file=out, flush=True)
    for line in sys.stdin:
        name, *words = json.loads(line)
        if name == 'clear':
            ctypes.memset(base + OUT, 0, INTO + SPARE)
            answer = 0
        elif name == 'reset':
            ctypes.memset(base + OUT, 0, INTO + SPARE)
            answer = side.reset()
        else:
            try:
                answer = shown(side.call(name, given(words, side.config)))
            except NotImplementedError as e:
                answer = f'NotImplementedError {e}'
            except Exception as e:
                answer = type(e).__name__
            if isinstance(side, EngineSide):
                answer = [answer, into_crc()]
            elif 'into' in name:
                answer = [answer, into_crc()]
                ctypes.memset(base + OUT, 0, INTO + SPARE)
        print(json.dumps(answer), file=out, flush=True)
    os._exit(0)  # what the real package does at the end of a process is not looked at


main()
