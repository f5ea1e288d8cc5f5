"""mc.lmcache's remote plugin over stand-ins for LMCache's classes, and a real pool.

tests/nightly/lmcache_remote.py does the same with the real ones."""
import asyncio
import json
import os
import signal
import sys
from types import SimpleNamespace

import mc
import mc.cluster
import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), 'stand_in'))

import lmcache_record  # noqa: E402
import vllm_record  # noqa: E402
from lmcache.v1.exceptions import IrrecoverableException  # noqa: E402
from mc.lmcache import McConnector, McConnectorAdapter, remote  # noqa: E402

FULL = 4096


class Chunk:
    """As LMCache's memory object: it counts its users, and its backend counts them all."""

    def __init__(self, backend, size):
        self.backend, self.data = backend, bytearray(size)
        self.meta = SimpleNamespace(shape=(size,), shapes=[(size,)])
        backend.used += 1

    byte_array = property(lambda self: memoryview(self.data)[:self.meta.shape[0]])
    get_shapes = lambda self: self.meta.shapes  # noqa: E731
    get_dtypes = lambda self: [7]  # noqa: E731
    get_memory_format = lambda self: 1  # noqa: E731

    def ref_count_down(self):
        self.backend.used -= 1


class Backend:
    def __init__(self, **extra):
        self.config = SimpleNamespace(extra_config=extra)
        self.metadata = SimpleNamespace(shapes=[(FULL,)], dtypes=[7])
        self.used, self.room = 0, 1000

    def allocate(self, shapes, dtypes, fmt):
        return Chunk(self, shapes[0][0]) if self.used < self.room else None


def key(name):
    return SimpleNamespace(to_string=lambda: f'model@1@0@{name}@bfloat16')


def keys(*names):
    return [key(name) for name in names]


def run(master, scenario, **extra):
    """`scenario(connector, backend)` on a loop, as LMCache runs it; everything is freed again."""
    backend = Backend(**extra)

    async def whole():
        context = SimpleNamespace(loop=asyncio.get_running_loop(), local_cpu_backend=backend, config=backend.config,
                                  metadata=backend.metadata, url=f'mc://{master}?namespace=remote&timeout=20s')
        connector = McConnectorAdapter().create_connector(context)
        try:
            await scenario(connector, backend)
        finally:
            await connector.close()
    asyncio.run(whole())
    assert backend.used == 0


def filled(backend, byte, size=FULL):
    chunk = Chunk(backend, size)
    chunk.data[:] = bytes([byte]) * size
    return chunk


async def put(connector, backend, name, byte, size=FULL):
    chunk = filled(backend, byte, size)
    await connector.put(key(name), chunk)
    chunk.ref_count_down()


def test_the_interface_is_the_recorded_one():
    with open(os.path.join(os.path.dirname(__file__), 'fixtures', 'lmcache-0.5.6.json')) as file:
        real = json.load(file)
    for name, members in lmcache_record.interface().items():
        for member, what in members.items():
            if member != '__init__' or name == 'RemoteConnector':
                assert real[name].get(member) == what, f'{name}.{member}'
    for name, ours in (('RemoteConnector', 'McConnector'), ('ConnectorAdapter', 'McConnectorAdapter')):
        mine = vllm_record.record(remote, [ours])[ours]
        for member, what in mine.items():
            if not member.startswith('_'):
                assert real[name][member]['parameters'] == what['parameters'], member
        assert not {m for m, what in real[name].items() if what['abstract']} - set(mine)


@pytest.mark.parametrize('meta', [True, False])
def test_chunks_come_back_in_their_shape(cluster, meta):
    async def scenario(connector, backend):
        for n in range(3):
            await put(connector, backend, f'{meta}{n}', n + 1)
        await put(connector, backend, f'{meta}3', 9, 100)
        found = await connector.batched_get(keys(*(f'{meta}{n}' for n in range(5))))
        assert [chunk and bytes(chunk.byte_array) for chunk in found] == [
            bytes([1]) * FULL, bytes([2]) * FULL, bytes([3]) * FULL, bytes([9]) * 100, None]
        assert found[3].meta.shapes == [(100,)]
        for chunk in found[:4]:
            chunk.ref_count_down()
    run(cluster.master, scenario, save_chunk_meta=meta)


def test_lookups_count_what_leads(cluster):
    async def scenario(connector, backend):
        for n in (0, 1, 3):
            await put(connector, backend, f'lead{n}', n)
        asked = keys(*(f'lead{n}' for n in range(4)))
        assert connector.batched_contains(asked) == 2
        assert await connector.batched_async_contains('id', asked) == 2
        assert [await connector.exists(each) for each in asked] == [True, True, False, True]
        leading = await connector.batched_get_non_blocking('id', asked)
        assert len(leading) == 2 and backend.used == 2
        for chunk in leading:
            chunk.ref_count_down()
    run(cluster.master, scenario)


@pytest.mark.parametrize('meta', [True, False])
def test_bytes_that_are_no_chunk_are_a_miss(cluster, meta):
    """Too short, too long, of another header, and a header that lies about its length."""
    values = [b'', b'x' * 7, b'x' * (FULL + 100), remote.RemoteMetadata(50, [(50,)], [7], 1).serialize() + b'x' * 49]
    if not meta:
        values = [b'', b'x' * (FULL + 100)]

    async def scenario(connector, backend):
        with mc.Store(cluster.master) as store:
            for n, value in enumerate(values):
                store.put(f'lmcache:remote/{key(f"bad{meta}{n}").to_string()}', value)
        assert await connector.batched_get(keys(*(f'bad{meta}{n}' for n in range(len(values))))) == [None] * len(values)
    run(cluster.master, scenario, save_chunk_meta=meta)


def test_no_room_for_a_chunk_is_a_miss(cluster):
    async def scenario(connector, backend):
        await put(connector, backend, 'room0', 1)
        await put(connector, backend, 'room1', 1)
        backend.room = 1
        found = await connector.batched_get(keys('room0', 'room1'))
        assert found[0] is not None and found[1] is None
        found[0].ref_count_down()
    run(cluster.master, scenario)


def test_list_and_remove(cluster):
    async def scenario(connector, backend):
        await put(connector, backend, 'listed', 1)
        assert key('listed').to_string() in await connector.list()
        assert not connector.remove_sync(key('none'))
        assert connector.remove_sync(key('listed')) and not connector.exists_sync(key('listed'))
        assert await connector.ping() == 0
    run(cluster.master, scenario)


def test_a_pool_that_does_not_answer_is_a_miss():
    with mc.cluster.Cluster(nodes=1, size='32MiB') as c:
        async def scenario(connector, backend):
            await put(connector, backend, 'k', 1)
            os.kill(c.pid('master'), signal.SIGSTOP)
            for _ in range(20):
                assert await connector.batched_get(keys('k', 'l')) == [None, None]
            assert connector.batched_contains(keys('k')) == 0 and not connector.exists_sync(key('k'))
            with pytest.raises(mc.Unavailable):
                await connector.put(key('m'), filled(backend, 1))
            backend.used -= 1
            os.kill(c.pid('master'), signal.SIGCONT)
        run(f'{c.master}?timeout=300ms&namespace=remote&name=x#', scenario)


def test_urls_and_entries():
    def config(**entries):
        return SimpleNamespace(extra_config={f'remote_storage_plugin.mc.{k}': v for k, v in entries.items()})
    adapter = McConnectorAdapter()
    assert [adapter.can_parse(url) for url in ('mc://a:1', 'plugin://mc', 'plugin://mc.two', 'plugin://mcx', 'redis://a')] \
        == [True, True, True, False, False]
    found = remote.settings_of('plugin://mc', config(url='mc://a:1,b:2?namespace=n&prefer-local=true', timeout='3s'))
    assert (found.master, found.namespace, found.timeout, found.options) == ('a:1,b:2', 'n', 3.0, {'prefer-local': 'true'})
    with pytest.raises(ValueError, match='namespace'):
        remote.settings_of('mc://a:1', None)
    with pytest.raises(ValueError, match='does not begin with mc://'):
        remote.settings_of('plugin://mc', config(url='a:1'))
    with pytest.raises(IrrecoverableException, match='namespace'):
        McConnector(None, Backend())
