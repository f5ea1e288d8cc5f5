"""mc.sglang.McHiCache over stand-ins for SGLang's classes, and a real pool.

tests/nightly/sglang_storage.py does the same with the real ones."""
import json
import os
import signal
import sys

import mc.cluster
import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), 'stand_in'))

import sglang_record  # noqa: E402
import vllm_record  # noqa: E402
from mc.buffers import span  # noqa: E402
from mc.sglang import McHiCache, hicache  # noqa: E402
from mc.sglang.keys import facts  # noqa: E402
from sglang.srt.mem_cache import hicache_storage as storage  # noqa: E402

PAGE, LAYERS, PIECE = 4, 3, 64


class Pool:
    """Of the host: K and V of every layer, one after another, a page in pieces of 64 bytes."""

    page_size, layer_num, head_num, dtype, layout = PAGE, LAYERS, 4, 'bfloat16', 'layer_first'

    def __init__(self, pages=16, **other):
        self.kv_buffer = bytearray(os.urandom(pages * 2 * LAYERS * PIECE))
        self.pages = pages
        self.__dict__.update(other)

    def places(self, page):
        return [(layer * self.pages + page) * PIECE for layer in range(2 * LAYERS)]

    def get_page_buffer_meta(self, indices):
        assert len(indices) % PAGE == 0
        base = span(self.kv_buffer).address
        found = [base + at for index in indices[::PAGE] for at in self.places(index // PAGE)]
        return found, [PIECE] * len(found)

    def get_split_heads_page_buffer_meta(self, indices, factor):
        found, sizes = self.get_page_buffer_meta(indices)
        part = PIECE // factor
        per = 2 * LAYERS
        out = [address + n * part for at in range(0, len(found), per) for n in range(factor)
               for address in found[at:at + per]]
        return out, [part] * len(out)

    def page(self, page):
        return b''.join(self.kv_buffer[at:at + PIECE] for at in self.places(page))


def config(rank=0, size=1, mla=False, **extra):
    more = {name: extra.pop(name) for name in ('tp_lcm_size', 'should_split_heads', 'model_name', 'pp_size')
            if name in extra}
    return storage.HiCacheStorageConfig(**{
        **dict(tp_rank=rank, tp_size=size, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=mla,
               enable_storage_metrics=False, is_page_first_layout=False, model_name='m'), **more},
        extra_config={'backend_name': 'mc', 'module_path': 'mc.sglang', 'class_name': 'McHiCache', 'interface_v1': 1,
                      'timeout': '20s', **extra})


@pytest.fixture
def made(cluster):
    """`made(pool, ...)` is a backend of that pool."""
    opened = []

    def make(pool, **more):
        out = McHiCache(config(master=cluster.master, **more), {})
        out.register_mem_pool_host(pool)
        opened.append(out)
        return out
    yield make
    for each in opened:
        each.close()


def slots(*pages):
    return [page * PAGE + n for page in pages for n in range(PAGE)]


def keys(name, count):
    return [f'{name}{n:064x}' for n in range(count)]


def test_the_interface_is_the_recorded_one():
    with open(os.path.join(os.path.dirname(__file__), 'fixtures', 'sglang-0.5.23.json')) as file:
        real = json.load(file)
    assert sglang_record.interface(storage) == real
    mine = vllm_record.record(hicache, ['McHiCache'])['McHiCache']
    for member, what in mine.items():
        if not member.startswith('_') and member != 'close':
            assert real['HiCacheStorage'][member]['parameters'] == what['parameters'], member
    assert not {m for m, what in real['HiCacheStorage'].items() if what['abstract']} - set(mine)


def test_pages_come_back(made):
    one, two = Pool(), Pool()
    a, b = made(one), made(two)
    assert a.batch_exists(keys('a', 4)) == 0
    assert a.batch_set_v1(keys('a', 3), slots(3, 1, 2)) == [True] * 3
    assert b.batch_exists(keys('a', 4)) == 3
    assert b.batch_get_v1(keys('a', 4), slots(5, 6, 7, 8)) == [True] * 3 + [False]
    assert [two.page(n) for n in (5, 6, 7)] == [one.page(n) for n in (3, 1, 2)]


def test_pages_that_sglang_copies(made):
    pool = Pool()
    a = made(pool, interface_v1=0)
    values = [bytes([n]) * 384 for n in range(2)]
    assert a.batch_set(keys('b', 2), values) and a.set(keys('b', 3)[2], b'x' * 384)
    assert a.batch_exists(keys('b', 4)) == 3 and a.exists(keys('b', 1)[0])
    places = [bytearray(384) for _ in range(4)]
    found = a.batch_get(keys('b', 4), places)
    assert found[:3] == [*values, b'x' * 384] and found[3] is None
    assert a.get(keys('b', 1)[0], bytearray(384)) == values[0]
    assert a.get(keys('b', 1)[0], bytearray(383)) is None, 'a page of another size'
    place = bytearray(384)
    assert a.get(keys('b', 1)[0], span(place).address, 384) is True and place == values[0]
    assert a.batch_get(keys('b', 4), [span(each).address for each in places], [384] * 4) == 3
    assert made(pool).batch_exists(keys('b', 1)) == 0, 'in another order of bytes'


def test_ranks(made):
    a, b = (made(Pool(), rank=rank, size=2) for rank in range(2))
    assert a.batch_set_v1(keys('c', 1), slots(0)) == [True] and b.batch_exists(keys('c', 1)) == 0
    first, second = (made(Pool(), rank=rank, size=2, mla=True) for rank in range(2))
    assert second.batch_set_v1(keys('d', 1), slots(0)) == [True] and first.batch_exists(keys('d', 1)) == 0
    assert second.batch_set(keys('d', 1), [b'x']) and not second.exists(keys('d', 1)[0])
    assert first.batch_set_v1(keys('d', 1), slots(0)) == [True] and second.batch_exists(keys('d', 1)) == 1
    pool = Pool()
    pool.__dict__.update(layout='page_first')
    for backend in (first, second):
        backend.register_mem_host_pool_v2(pool, 'mamba')
    state = storage.PoolTransfer(name='mamba', keys=keys('d', 1), host_indices=slots(1))
    assert second.batch_set_v2([state]) == {'mamba': [True]}, 'each rank has its own state'
    assert first.batch_exists_v2(keys('d', 1), [state]).kv_hit_pages == 0
    assert second.batch_exists_v2(keys('d', 1), [state]).kv_hit_pages == 1


def test_heads_are_split_for_smaller_ranks(made):
    whole, half = Pool(head_num=4), Pool(head_num=2)
    wide = made(whole, tp_lcm_size=2, should_split_heads=True)
    assert wide.batch_set_v1(keys('e', 2), slots(0, 1)) == [True, True] and wide.batch_exists(keys('e', 3)) == 2
    narrow = made(half, rank=1, size=2, tp_lcm_size=2)
    assert narrow.batch_exists(keys('e', 2)) == 2, 'keys are those of a server with twice the ranks'
    before = whole.page(0)
    assert wide.batch_get_v1(keys('e', 2), slots(8, 9)) == [True, True] and whole.page(8) == before
    same = facts(config(tp_lcm_size=2, should_split_heads=True), whole, True)
    assert same == facts(config(size=2, tp_lcm_size=2, should_split_heads=False), half, True)


@pytest.mark.parametrize('other', [{'namespace': 'x'}, {'model_name': 'n'}, {'size': 2}, {'pp_size': 2}, {'mla': True}])
def test_others_find_nothing(made, other):
    a = made(Pool())
    assert a.batch_set_v1(keys('f', 1), slots(0)) == [True]
    assert made(Pool(), **other).batch_exists(keys('f', 1)) == 0


@pytest.mark.parametrize('other', [{'dtype': 'float16'}, {'layout': 'page_first'}, {'page_size': 8}, {'head_num': 2}])
def test_pools_of_another_kind_find_nothing(made, other):
    assert made(Pool()).batch_set_v1(keys('g', 1), slots(0)) == [True]
    assert made(Pool(**other)).batch_exists(keys('g', 1)) == 0


def test_policies_of_several_pools(made):
    a = made(Pool())
    a.register_mem_host_pool_v2(Pool(), 'swa')
    a.register_mem_host_pool_v2(Pool(), 'indexer')
    chain = keys('h', 6)
    a.batch_set_v1(chain[:5], slots(0, 1, 2, 3, 4))

    def put(name, *which):
        a.batch_set_v2([storage.PoolTransfer(name=name, keys=[chain[n] for n in which], host_indices=slots(*which))])
    put('indexer', 0, 1, 2, 3)
    put('swa', 1, 2, 4)
    window = storage.PoolTransfer(name='swa', keys=chain[-2:], hit_policy=storage.PoolHitPolicy.TRAILING_PAGES)
    every = storage.PoolTransfer(name='indexer', keys=chain)
    groups = storage.PoolTransfer(name='swa', keys=chain, hit_policy=storage.PoolHitPolicy.BLOCK_GROUPS)
    found = a.batch_exists_v2(chain, [every, window])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (3, [3])
    assert found.extra_pool_hit_pages == {'kv': 5, 'indexer': 4, 'swa': 3}
    assert a.batch_exists_v2(chain).kv_hit_pages == 5
    assert a.batch_exists_v2(chain, [groups]).kv_hit_pages == 5, 'never limits the KV cache'
    got = a.batch_get_v2([storage.PoolTransfer(name='swa', keys=[chain[1], chain[3]], host_indices=slots(8, 9)),
                          storage.PoolTransfer(name='indexer', keys=chain[:1], host_indices=slots(8))])
    assert got == {'swa': [True, False], 'indexer': [True]}


def test_nothing_raises(made):
    a = made(Pool())
    unknown = storage.PoolTransfer(name='other', keys=keys('i', 2), host_indices=slots(0, 1))
    assert a.batch_get_v2([unknown]) == {'other': [False, False]} == a.batch_set_v2([unknown])
    assert a.batch_exists_v2(keys('i', 2), [unknown]).kv_hit_pages == 0
    assert a.batch_get_v1(keys('i', 2), slots(0)[:3]) == [False, False]
    assert a.batch_get(keys('i', 2)) == [None, None] and not a.batch_set(keys('i', 2), [b'x'])
    assert a.get(keys('i', 1)[0], object()) is None


def test_a_logical_anchor_has_no_pages(made):
    a = made(Pool(kv_buffer=None))
    assert a.batch_exists(keys('j', 2)) == 2 and a.batch_set_v1(keys('j', 2), slots(0, 1)) == [True, True]
    assert a.batch_exists_v2(keys('j', 2)).kv_hit_pages == 2


def test_clear_removes_its_own(made):
    a, b = made(Pool()), made(Pool(), namespace='kept')
    for each in (a, b):
        each.batch_set_v1(keys('k', 2), slots(0, 1))
    assert a.clear() and a.batch_exists(keys('k', 2)) == 0 and b.batch_exists(keys('k', 2)) == 2


def test_settings_are_checked():
    for extra, why in (({'tiemout': '1s'}, "did you mean 'timeout'"), ({'namespace': 'a/b'}, 'letters')):
        with pytest.raises(ValueError, match=why):
            McHiCache(config(**extra), {})


def test_a_pool_that_does_not_answer_is_a_miss():
    with mc.cluster.Cluster(nodes=1, size='32MiB') as c:
        a = McHiCache(config(master=c.master, timeout='200ms'), {})
        a.register_mem_pool_host(Pool())
        while a.batch_set_v1(keys('l', 1), slots(0)) != [True]:
            pass
        os.kill(c.pid('master'), signal.SIGSTOP)
        for _ in range(30):
            assert a.batch_exists(keys('l', 1)) == 0 and a.batch_get_v1(keys('l', 1), slots(1)) == [False]
        assert a.batch_set_v1(keys('l', 1), slots(0)) == [False] and not a.exists(keys('l', 1)[0]) and not a.clear()
        a.close()
