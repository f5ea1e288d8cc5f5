"""mc.lmcache's remote storage plugin, and LMCache's Mooncake connector over mc's import shim, driven by LMCache's own
classes: run it with the Python of an
environment that has LMCache (tests/nightly/lmcache.sh). Ends with 1 if something is wrong."""

import asyncio
import os
import pathlib
import signal
import sys
import threading
import time

import mc
import mc.cluster
import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.remote_backend import RemoteBackend

CHUNK, LAYERS, HEADS, HEAD = 256, 4, 2, 64
TIMEOUT = 1.0
wrong = 0


def check(good, what):
    global wrong
    print(f"{'ok   ' if good else 'WRONG'} {what}", flush=True)
    wrong += not good


class Engine:
    """What an engine's process has of LMCache."""

    def __init__(self, master, meta, plugin='mc', **entries):
        self.config = LMCacheEngineConfig.from_defaults(
            chunk_size=CHUNK, local_cpu=False, max_local_cpu_size=0.25, remote_serde='naive',
            blocking_timeout_secs=30, remote_storage_plugins=[plugin],
            extra_config={
                'remote_storage_plugin.mc.module_path': 'mc.lmcache',
                'remote_storage_plugin.mc.class_name': 'McConnectorAdapter',
                'remote_storage_plugin.mc.url': f'mc://{master}?timeout={TIMEOUT}s',
                'save_chunk_meta': meta, **entries})
        self.metadata = LMCacheMetadata('model/x', 1, 1, 0, 0, torch.bfloat16, (LAYERS, 2, CHUNK, HEADS, HEAD),
                                        chunk_size=CHUNK)
        self.local = LocalCPUBackend(self.config, self.metadata, 'cpu')
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.remote = RemoteBackend(self.config, self.metadata, self.loop, self.local, 'cpu', plugin_name=plugin)

    def key(self, number):
        return CacheEngineKey('model/x', 1, 0, number, torch.bfloat16)

    def chunk(self, number, tokens=CHUNK):
        shape = torch.Size([2, LAYERS, tokens, HEADS * HEAD])
        out = self.local.allocate([shape], [torch.bfloat16], MemoryFormat.KV_2LTD)
        out.get_tensor(0).copy_(torch.full(shape, float(number)))
        return out

    def put(self, numbers, tokens=CHUNK):
        done = [threading.Event() for _ in numbers]
        keys = [self.key(n) for n in numbers]
        waiting = dict(zip(keys, done))
        chunks = [self.chunk(n, tokens) for n in numbers]
        self.remote.batched_submit_put_task(keys, chunks, on_complete_callback=lambda key: waiting[key].set())
        for event in done:
            assert event.wait(30)
        for chunk in chunks:
            chunk.ref_count_down()

    def get(self, numbers):
        """Of each chunk: its number by its bytes and its shape, or None."""
        out = []
        for number, chunk in zip(numbers, self.remote.batched_get_blocking([self.key(n) for n in numbers])):
            if chunk is None:
                out.append(None)
                continue
            tensor = chunk.get_tensor(0)
            out.append((bool((tensor == float(number)).all()), tuple(tensor.shape)))
            chunk.ref_count_down()
        return out

    def used(self):
        return self.local.memory_allocator.pin_allocator.address_manager.get_free_size()

    def close(self):
        self.remote.close()


def both_ways(meta):
    name = 'with its header' if meta else 'without a header'
    full, part = (True, (2, LAYERS, CHUNK, HEADS * HEAD)), (True, (2, LAYERS, 100, HEADS * HEAD))
    with mc.cluster.Cluster(nodes=1, size='256MiB') as c:
        space = f'n{int(meta)}'
        one = Engine(c.master, meta, **{'remote_storage_plugin.mc.namespace': space})
        check(type(one.remote.connection.getWrappedConnector()).__name__ == 'McConnector', f'{name}: LMCache made it')
        free = one.used()
        one.put(range(8))
        one.put([8], tokens=100)
        check(one.used() == free, f'{name}: nothing stays allocated after puts')
        two = Engine(c.master, meta, **{'remote_storage_plugin.mc.namespace': space})
        keys = [two.key(n) for n in range(12)]
        check(two.remote.batched_contains(keys) == 9, f'{name}: another process finds the 9 chunks that lead')
        check(two.remote.contains(keys[3]) and not two.remote.contains(keys[10]), f'{name}: and each by itself')
        found = asyncio.run_coroutine_threadsafe(two.remote.batched_async_contains('l', keys), two.loop).result(30)
        check(found == 9, f'{name}: asynchronously as well')
        free = two.used()
        check(two.get(range(10)) == [full] * 8 + [part, None], f'{name}: bytes and shapes are those that were put')
        leading = asyncio.run_coroutine_threadsafe(
            two.remote.batched_get_non_blocking('l', [two.key(n) for n in (0, 1, 11, 2)]), two.loop).result(30)
        check(len(leading) == 2, f'{name}: a get of chunks that lead ends at the first gap')
        for chunk in leading:
            chunk.ref_count_down()
        check(two.get([4])[0] == full and two.remote.get_blocking(two.key(11)) is None, f'{name}: one by one')
        check(two.used() == free, f'{name}: nothing stays allocated after gets')
        listed = asyncio.run_coroutine_threadsafe(two.remote.connection.list(), two.loop).result(30)
        check(sorted(listed) == sorted(two.key(n).to_string() for n in range(9)), f'{name}: list gives LMCache\'s keys')
        with mc.Store(c.master) as store:
            store.put(f'lmcache:{space}/{two.key(20).to_string()}', b'no chunk')
            store.put(f'lmcache:{space}/{two.key(21).to_string()}', b'\xff' * 3_000_000)
            store.put(f'lmcache:{space}/{two.key(22).to_string()}', b'')
        check(two.get([20, 21, 22]) == [None] * 3 and two.used() == free, f'{name}: bytes that are no chunk are a miss')
        other = Engine(c.master, meta, **{'remote_storage_plugin.mc.namespace': 'other'})
        check(other.remote.batched_contains(keys) == 0, f'{name}: another namespace finds nothing')
        trouble(c, two, name, full)
        for engine in (one, two, other):
            engine.close()


def trouble(c, engine, name, full):
    def timed(what, call, bound):
        begun = time.monotonic()
        out = call()
        took = time.monotonic() - begun
        check(took < bound, f'{name}: {what}: {took:.1f} s, at most {bound:.0f}')
        return out

    def again():
        end = time.monotonic() + 60
        while engine.get([0]) != [full]:
            assert time.monotonic() < end, 'the pool did not come back'
            time.sleep(0.2)

    free = engine.used()
    os.kill(c.pid('master'), signal.SIGSTOP)
    for _ in range(5):
        got = timed('get while the master is stopped', lambda: engine.get(range(8)), 4 * TIMEOUT)
        check(got == [None] * 8, f'{name}: is a miss')
    check(timed('lookup', lambda: engine.remote.batched_contains([engine.key(0)]), 4 * TIMEOUT) == 0, f'{name}: is a miss')
    timed('put', lambda: engine.put([30]), 4 * TIMEOUT)
    ping = asyncio.run_coroutine_threadsafe(engine.remote.connection.ping(), engine.loop).result(30)
    check(ping != 0, f'{name}: the ping tells it: {mc.Code(ping).name}')
    os.kill(c.pid('master'), signal.SIGCONT)
    again()
    os.kill(c.pid('s0'), signal.SIGSTOP)
    got = timed('get while the node is stopped', lambda: engine.get(range(8)), 4 * TIMEOUT)
    check(all(each in (None, full) for each in got), f'{name}: what came is right')
    os.kill(c.pid('s0'), signal.SIGCONT)
    again()
    c.kill('s0')
    got = timed('get after the node was killed', lambda: engine.get(range(8)), 4 * TIMEOUT)
    check(all(each in (None, full) for each in got), f'{name}: what came is right')
    c.kill('master')
    check(timed('get after the master was killed', lambda: engine.get(range(8)), 4 * TIMEOUT) == [None] * 8,
          f'{name}: is a miss')
    check(engine.used() == free, f'{name}: nothing stays allocated')


def through_the_shim(meta):
    """LMCache's own connector for Mooncake; `mooncake` is mc's. Its name for the master is one that Mooncake's dict knows."""
    name = f'mooncakestore, save_chunk_meta {meta}'
    with mc.cluster.Cluster(nodes=1, size='256MiB') as c:
        words = {'local_hostname': '127.0.0.1', 'metadata_server': 'P2PHANDSHAKE', 'global_segment_size': 0,
                 'local_buffer_size': 0, 'protocol': 'tcp', 'mooncake_master_server_addr': c.master, 'transfer_timeout': 5}
        one, two = (Engine(c.master, meta, 'mooncakestore', **words) for _ in range(2))
        check(type(one.remote.connection.getWrappedConnector()).__name__ == 'MooncakestoreConnector', f'{name}: LMCache made it')
        one.put(range(4))
        full = (True, (2, LAYERS, CHUNK, HEADS * HEAD))
        check(two.remote.batched_contains([two.key(n) for n in range(6)]) == 4, f'{name}: another process finds 4 chunks')
        check(two.get(range(5)) == [full] * 4 + [None], f'{name}: bytes and shapes are those that were put')
        for engine in (one, two):
            engine.close()


def named_directly():
    """The connector's class in place of the adapter's."""
    with mc.cluster.Cluster(nodes=1, size='64MiB') as c:
        engine = Engine(c.master, True, **{'remote_storage_plugin.mc.class_name': 'McConnector',
                                           'remote_storage_plugin.mc.namespace': 'direct'})
        engine.put([1])
        check(engine.get([1, 2]) == [(True, (2, LAYERS, CHUNK, HEADS * HEAD)), None], 'class_name McConnector: a chunk comes back')
        engine.close()


def refused():
    engine = Engine('127.0.0.1:1', True)
    check(engine.remote is None, 'without a namespace it does not start')


if __name__ == '__main__':
    sys.path.append(str(pathlib.Path(mc.__file__).parent / 'compat/shim'))
    for meta in (True, False):
        both_ways(meta)
        through_the_shim(meta)
    named_directly()
    try:
        refused()
    except Exception as e:
        check('namespace' in str(e), f'without a namespace it does not start: {e}')
    print(f'{wrong} wrong', flush=True)
    os._exit(1 if wrong else 0)
