"""mc.sglang.McHiCache under SGLang's own storage classes and host pools, beside its file backend.

    PYTHON tests/nightly/sglang_storage.py FOLDER

FOLDER has SGLang's wheel, unpacked; the Python has torch. Its engine is not needed: what storage imports of it
is stood in for. Ends with 1 if something is wrong."""

import importlib
import logging
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / 'python'))

import mc
import mc.cluster
import sglang_record
import torch

storage = sglang_record.real(sys.argv[1])
Factory = importlib.import_module('sglang.srt.mem_cache.storage').StorageBackendFactory
MHA = importlib.import_module(sglang_record.POOLS + '.mha').MHATokenToKVPoolHost
MLA = importlib.import_module(sglang_record.POOLS + '.mla').MLATokenToKVPoolHost
logging.getLogger(storage.__name__).setLevel(logging.ERROR)
PAGE, LAYERS, HEADS, DIM, SLOTS = 16, 4, 8, 32, 64
TIMEOUT = 1.0
wrong = 0


def check(good, what):
    global wrong
    print(f"{'ok   ' if good else 'WRONG'} {what}", flush=True)
    wrong += not good


def mha(layout='page_first', seed=0, heads=HEADS):
    """SGLang's own pool; its constructor wants a device."""
    pool = object.__new__(MHA)
    size = SLOTS * PAGE
    shapes = {'layer_first': (2, LAYERS, size, heads, DIM), 'page_first': (2, size, LAYERS, heads, DIM),
              'page_first_direct': (2, SLOTS, LAYERS, PAGE, heads, DIM),
              'page_head': (2, SLOTS, heads, PAGE, LAYERS, DIM)}
    pool.__dict__.update(layout=layout, page_size=PAGE, layer_num=LAYERS, head_num=heads, head_dim=DIM, v_head_dim=DIM,
                         size=size, dtype=torch.bfloat16, device='cpu', pin_memory=False)
    pool.kv_buffer = torch.randn(shapes[layout], generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
    return pool


def mla(seed=0):
    pool = object.__new__(MLA)
    size = SLOTS * PAGE
    pool.__dict__.update(layout='page_first', page_size=PAGE, layer_num=LAYERS, kv_lora_rank=48, qk_rope_head_dim=16,
                         kv_cache_dim=64, size=size, dtype=torch.bfloat16, device='cpu', pin_memory=False, dcp_size=1)
    pool.kv_buffer = torch.randn((size, LAYERS, 1, 64), generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
    return pool


def config(rank=0, size=1, is_mla=False, zero_copy=1, first=True, **extra):
    more = {name: extra.pop(name) for name in ('tp_lcm_size', 'should_split_heads') if name in extra}
    return storage.HiCacheStorageConfig(
        tp_rank=rank, tp_size=size, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=is_mla,
        enable_storage_metrics=True, is_page_first_layout=first, model_name='model/x', **more,
        extra_config={'backend_name': 'mc', 'module_path': 'mc.sglang', 'class_name': 'McHiCache',
                      'interface_v1': zero_copy, 'timeout': f'{TIMEOUT}s', **extra})


def backend(master, pool, **more):
    out = Factory.create_backend('dynamic', config(master=master, **more), pool)
    out.register_mem_pool_host(pool)
    out.on_host_pools_registered()
    return out


def slots(*pages):
    return torch.tensor([page * PAGE + n for page in pages for n in range(PAGE)], dtype=torch.int64)


def page(pool, at):
    return pool.get_data_page(at * PAGE).clone()


def hashes(name, count):
    return [f'{name}{n:062x}' for n in range(count)]


def zero_copy(master, layout):
    one, two = mha(layout, 1), mha(layout, 2)
    a, b = backend(master, one, first=layout == 'page_first'), backend(master, two, first=layout == 'page_first')
    keys = hashes(layout[:2] + layout[-1], 8)
    check(a.batch_exists(keys) == 0, f'{layout}: nothing is there')
    check(a.batch_set_v1(keys[:5], slots(3, 1, 4, 9, 5)) == [True] * 5, f'{layout}: 5 pages are stored')
    check(a.batch_set_v1(keys[:5], slots(3, 1, 4, 9, 5)) == [True] * 5, f'{layout}: again, they are')
    check(b.batch_exists(keys) == 5, f'{layout}: another engine finds the 5 that lead')
    check(b.batch_get_v1(keys[:6], slots(10, 11, 12, 13, 14, 15)) == [True] * 5 + [False], f'{layout}: and loads them')
    check(all(torch.equal(page(one, x), page(two, y)) for x, y in zip((3, 1, 4, 9, 5), range(10, 15))),
          f'{layout}: bytes are equal')
    stats = b.get_stats()
    check(stats.prefetch_pgs == [5] and stats.prefetch_bandwidth[0] > 0 and b.get_stats().prefetch_pgs == [],
          f'{layout}: {stats.prefetch_bandwidth[0]:.2f} GB/s told')
    other = backend(master, mha(layout, 3), first=layout == 'page_first', namespace='other')
    check(other.batch_exists(keys) == 0, f'{layout}: another namespace finds nothing')
    copied = backend(master, mha(layout, 3), first=layout == 'page_first', zero_copy=0)
    check(copied.batch_exists(keys) == 0, f'{layout}: nor does an engine whose SGLang copies pages')
    for each in (a, b, other, copied):
        each.close()


def copied(master, layout):
    """The calls of SGLang without interface_v1, as cache_controller makes them."""
    one, two = mha(layout, 1), mha(layout, 2)
    a, b = backend(master, one, zero_copy=0), backend(master, two, zero_copy=0)
    keys = hashes('c' + layout[:2] + layout[-1], 4)
    check(a.batch_set(keys[:3], [page(one, at) for at in (7, 8, 9)]), f'{layout}, copied: 3 pages are stored')
    check(b.batch_exists(keys) == 3 and b.exists(keys[0]) and not b.exists(keys[3]), f'{layout}, copied: they are there')
    found = b.batch_get(keys, [two.get_dummy_flat_data_page() for _ in keys])
    check(found[3] is None, f'{layout}, copied: the fourth is not')
    for at, value in enumerate(found[:3]):
        two.set_from_flat_data_page(at * PAGE, value)
    check(all(torch.equal(page(one, 7 + at), page(two, at)) for at in range(3)), f'{layout}, copied: bytes are equal')
    for each in (a, b):
        each.close()


def ranks(master):
    heads = [mha(seed=10 + rank) for rank in range(2)]
    mine = [backend(master, pool, rank=rank, size=2) for rank, pool in enumerate(heads)]
    keys = hashes('a', 2)
    mine[0].batch_set_v1(keys, slots(0, 1))
    check(mine[1].batch_exists(keys) == 0, 'tensor parallel: a rank does not find what another computed')
    mine[1].batch_set_v1(keys[:1], slots(5))
    mine[1].batch_get_v1(keys[:1], slots(9))
    check(torch.equal(page(heads[1], 9), page(heads[1], 5)), 'tensor parallel: each has its own')
    same = [mla(20), mla(21)]
    latent = [backend(master, pool, rank=rank, size=2, is_mla=True) for rank, pool in enumerate(same)]
    keys = hashes('b', 2)
    check(latent[1].batch_set_v1(keys, slots(0, 1)) == [True, True] and latent[0].batch_exists(keys) == 0,
          'MLA: the second rank writes nothing')
    check(latent[0].batch_set_v1(keys, slots(2, 3)) == [True, True] and latent[1].batch_exists(keys) == 2,
          'MLA: the first writes, both find')
    check(latent[1].batch_get_v1(keys, slots(8, 9)) == [True, True]
          and torch.equal(page(same[1], 8), page(same[0], 2)), 'MLA: and the second reads the bytes of the first')
    whole, half = mha('page_head', 30), [mha('page_head', 31 + n, HEADS // 2) for n in range(2)]
    wide = backend(master, whole, tp_lcm_size=2, should_split_heads=True)
    narrow = [backend(master, pool, rank=n, size=2, tp_lcm_size=2, should_split_heads=False)
              for n, pool in enumerate(half)]
    keys = hashes('d', 3)
    check(wide.batch_set_v1(keys, slots(1, 2, 3)) == [True] * 3 and wide.batch_exists(keys) == 3
          and wide.batch_get_v1(keys, slots(11, 12, 13)) == [True] * 3 and torch.equal(page(whole, 12), page(whole, 2)),
          'heads that are split: pages come back whole')
    for rank, (each, pool) in enumerate(zip(narrow, half)):
        check(each.batch_get_v1(keys, slots(4, 5, 6)) == [True] * 3
              and torch.equal(pool.kv_buffer[:, 4], whole.kv_buffer[:, 1, rank * HEADS // 2:(rank + 1) * HEADS // 2]),
              f'heads that are split: rank {rank} of 2 loads its half')
    for each in (*mine, *latent, wide, *narrow):
        each.close()


def beside_the_file_backend(master):
    """The same calls to SGLang's own file backend and to ours, with pools beside the KV cache."""
    chance = random.Random(4)
    with tempfile.TemporaryDirectory() as folder:
        anchor = mha(seed=40)
        pools = {storage.PoolName.SWA: mha(seed=41), storage.PoolName.INDEXER: mha(seed=42)}
        ours = backend(master, anchor, namespace='beside', zero_copy=0)
        theirs = storage.HiCacheFile(config(namespace='beside'), folder)
        theirs.register_mem_pool_host(anchor)
        for name, pool in pools.items():
            for each in (ours, theirs):
                each.register_mem_host_pool_v2(pool, name)
        keys, rounds = hashes('e', 12), 0
        policies = {storage.PoolName.SWA: storage.PoolHitPolicy.TRAILING_PAGES,
                    storage.PoolName.INDEXER: storage.PoolHitPolicy.ALL_PAGES}
        equal, hits = {'exists': True, 'set': True, 'get': True, 'query': True}, 0
        for _ in range(150):
            rounds += 1
            some = chance.sample(range(12), chance.randrange(1, 4))
            what = chance.choice(['kv', 'pool', 'query', 'query', 'get'])
            if what == 'kv':
                pages = [page(anchor, n) for n in some]
                equal['set'] &= ours.batch_set([keys[n] for n in some], pages) == theirs.batch_set([keys[n] for n in some], pages)
            elif what == 'pool' or what == 'get':
                name = chance.choice(list(pools))
                at = some if what == 'pool' else [20 + n for n in some]
                transfer = storage.PoolTransfer(name=name, keys=[keys[n] for n in some], host_indices=slots(*at))
                call = 'batch_set_v2' if what == 'pool' else 'batch_get_v2'
                got = getattr(ours, call)([transfer])
                mine = [page(pools[name], n) for n in at]
                equal[what if what == 'get' else 'set'] &= got == getattr(theirs, call)([transfer])
                equal['get'] &= all(torch.equal(x, page(pools[name], n)) for x, n in zip(mine, at))
            else:
                chain = keys[:chance.randrange(1, 13)]
                transfers = [storage.PoolTransfer(name=name, keys=chain[-chance.randrange(1, 4):], hit_policy=policies[name])
                             for name in chance.sample(list(pools), chance.randrange(0, 3))]
                equal['exists'] &= ours.batch_exists(chain) == theirs.batch_exists(chain)
                found = ours.batch_exists_v2(chain, transfers)
                hits += found.kv_hit_pages > 0 and len(transfers) > 0
                equal['query'] &= found == theirs.batch_exists_v2(chain, transfers)
        for what, same in equal.items():
            check(same, f'{rounds} seeded calls beside HiCacheFile: {what} is the same')
        check(hits > 5, f'{hits} of the queries over several pools hit')
        unknown = storage.PoolTransfer(name=storage.PoolName.MAMBA, keys=keys[:1], host_indices=slots(0))
        check(ours.batch_get_v2([unknown]) == {storage.PoolName.MAMBA: [False]}, 'a pool that is not registered is a miss')
        check(ours.clear() and ours.batch_exists(keys) == 0, 'clear removes it')
        ours.close()


def trouble():
    with mc.cluster.Cluster(nodes=1, size='128MiB') as c:
        pool = mha(seed=50)
        a = backend(c.master, pool)
        keys = hashes('f', 4)
        assert a.batch_set_v1(keys, slots(0, 1, 2, 3)) == [True] * 4
        os.kill(c.pid('master'), signal.SIGSTOP)
        begun = time.monotonic()
        for _ in range(10):
            check_quiet = (a.batch_exists(keys), a.batch_get_v1(keys, slots(4, 5, 6, 7)), a.batch_set_v1(keys, slots(0, 1, 2, 3)))
            if check_quiet != (0, [False] * 4, [False] * 4):
                check(False, f'the master is stopped: {check_quiet}')
        took = time.monotonic() - begun
        check(took < 4 * TIMEOUT, f'the master is stopped: 30 calls fail in {took:.1f} s')
        os.kill(c.pid('master'), signal.SIGCONT)
        end = time.monotonic() + 60
        while a.batch_exists(keys) != 4 and time.monotonic() < end:
            time.sleep(0.2)
        check(a.batch_get_v1(keys, slots(4, 5, 6, 7)) == [True] * 4, 'the master goes on: pages load again')
        os.kill(c.pid('s0'), signal.SIGSTOP)
        got = a.batch_get_v1(keys, slots(8, 9, 10, 11))
        check(all(not well or torch.equal(page(pool, 8 + n), page(pool, n)) for n, well in enumerate(got)),
              f'the node is stopped: {got.count(True)} of 4 load, and are right')
        c.kill('s0')
        begun = time.monotonic()
        got = a.batch_get_v1(keys, slots(8, 9, 10, 11))
        check(time.monotonic() - begun < 4 * TIMEOUT and not any(got), 'the node is gone: misses')
        c.kill('master')
        check(a.batch_exists(keys) == 0 and a.batch_set_v1(keys, slots(0, 1, 2, 3)) == [False] * 4, 'the master is gone: misses')
        a.close()


if __name__ == '__main__':
    with mc.cluster.Cluster(nodes=1, size='512MiB') as c:
        for layout in ('layer_first', 'page_first', 'page_first_direct', 'page_head'):
            zero_copy(c.master, layout)
            copied(c.master, layout)
        ranks(c.master)
        beside_the_file_backend(c.master)
    trouble()
    print(f'{wrong} wrong', flush=True)
    sys.exit(1 if wrong else 0)
