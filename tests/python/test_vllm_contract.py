"""McConnector under a small engine that calls it as vLLM does. That vLLM calls it so, nightly shows."""

import copy
import json
import os
import random
import sys
import threading
import types

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), 'stand_in'))
import vllm_record
from vllm_engine import BLOCK, Engine, FakePool, Request, Shared, WrongToken

from mc import doctor
from mc.vllm import connector
from mc.vllm.lookups import Lookups
from mc.vllm.scheduler import Plan, Transfer
from mc.vllm.worker import Done, Worker

base = connector.base


class FullAttentionSpec:
    pass


class Layer:
    isa = 'vec'

    def get_attn_backend(self):
        return types.SimpleNamespace(get_name=lambda: 'CPU_ATTN')


class Tensor:
    """As much of a tensor as the connector looks at."""

    def __init__(self, shape, strides, address=1 << 20, size=4, device='cpu', dtype='float32'):
        self.shape, self._strides, self._address, self._size = shape, strides, address, size
        self.device, self.dtype = device, dtype

    def data_ptr(self):
        return self._address

    def stride(self):
        return self._strides

    def element_size(self):
        return self._size


def config(extra=None, **changes):
    hf = types.SimpleNamespace(to_dict=lambda: {'layers': 1}, _commit_hash='c0ffee')
    model = types.SimpleNamespace(model='none/such', hf_config=hf,
                                  dtype='float32', max_model_len=64, quantization=None, revision=None)
    out = types.SimpleNamespace(
        model_config=model, load_config=types.SimpleNamespace(download_dir=None),
        cache_config=types.SimpleNamespace(block_size=BLOCK, cache_dtype='auto', prefix_caching_hash_algo='sha256_cbor'),
        parallel_config=types.SimpleNamespace(rank=0, tensor_parallel_size=1, pipeline_parallel_size=1,
                                              world_size=1),
        speculative_config=None,
        compilation_config=types.SimpleNamespace(static_forward_context={'l0': Layer()}),
        kv_transfer_config=types.SimpleNamespace(
            kv_connector_extra_config=extra or {}, kv_load_failure_policy='recompute',
            is_kv_consumer=True, is_kv_producer=True))
    for name, value in changes.items():
        part, field = name.split('__')
        setattr(getattr(out, part) if part else out, field, value)
    return out


def cache_config(blocks):
    group = types.SimpleNamespace(kv_cache_spec=FullAttentionSpec())
    return types.SimpleNamespace(num_blocks=blocks, kv_cache_groups=[group], hash_block_size=BLOCK)


@pytest.fixture
def pool(monkeypatch):
    monkeypatch.setattr(connector, 'Pool', FakePool)
    FakePool.shared = Shared()
    FakePool.random = random.Random(1)
    return FakePool.shared


def engine(blocks=16, extra=None, of=None, ranks=1, **options):
    settings = of or config(extra, parallel_config__tensor_parallel_size=ranks)

    def make(role, rank):
        own = copy.deepcopy(settings)
        own.parallel_config.rank = rank
        out = connector.McConnector(own, base.KVConnectorRole[role.upper()], cache_config(blocks))
        if role == 'scheduler':
            # In the same thread here: the tests do not depend on when the answer comes.
            match = out._pool.match
            out._lookups.ask = lambda key, prefixes, hashes, count: match(prefixes, hashes, count)
        else:
            caches = {'l0': Tensor((blocks, 1, BLOCK, 2), (BLOCK * 2, BLOCK * 2, 2, 1))}
            register = out.register_kv_caches
            out.register_kv_caches = lambda _: register(caches)
        return out

    return Engine(make, blocks, ranks=ranks, **options)


def answer(on, tokens, output=6, name='r', **more):
    on.add(Request(name, tokens, output, **more))
    on.drain()
    return on.answers[name]


PROMPT = list(range(100, 122))  # 5 full blocks and 2 tokens


def test_another_engine_loads_what_one_saved(pool):
    want = answer(engine(), PROMPT)
    second = engine()
    assert answer(second, PROMPT) == want
    assert second.external_tokens == 5 * BLOCK


def test_a_token_is_left_to_compute(pool):
    answer(engine(), PROMPT[: 4 * BLOCK])
    second = engine()
    answer(second, PROMPT[: 4 * BLOCK])
    assert second.external_tokens == 3 * BLOCK


def test_blocks_with_generated_tokens_are_shared(pool):
    first = answer(engine(), PROMPT, output=10)
    second = engine()
    answer(second, PROMPT + first + [7])
    assert second.external_tokens == (len(PROMPT) + 10 - 1) // BLOCK * BLOCK


def test_generated_tokens_are_not_saved_when_told_so(pool):
    answer(engine(extra={'save-decoded': False}), PROMPT, output=10)
    assert len(pool.values) == 5


def test_a_decoding_engine_waits_for_what_the_prefilling_one_still_saves(pool):
    first = engine()
    prefill = Request('p', PROMPT, 1)
    prefill.kv_transfer_params = {'do_remote_decode': True, 'do_remote_prefill': False}
    first.add(prefill)
    first.drain()
    assert prefill.told['do_remote_prefill'] and prefill.told['mc']['prompt_tokens'] == len(PROMPT)
    saved = dict(pool.values)
    pool.values.clear()
    for wait, steps, found in (('60m', 3, 5 * BLOCK), ('0', 0, 0)):
        second = engine(extra={'wait': wait})
        decode = Request('d', PROMPT, 6)
        decode.kv_transfer_params = prefill.told
        second.add(decode)
        for _ in range(steps):
            second.step()
        assert not second.external_tokens and (decode.status == 'waiting')
        if found:
            pool.values.update(saved)
        second.drain()
        assert second.external_tokens == found
        pool.values.clear()


def test_salts_do_not_share(pool):
    answer(engine(), PROMPT, salt='a')
    for salt in (None, 'b'):
        other = engine()
        answer(other, PROMPT, salt=salt)
        assert other.external_tokens == 0
    same = engine()
    answer(same, PROMPT, salt='a')
    assert same.external_tokens == 5 * BLOCK


def test_adapters_do_not_share(pool, tmp_path):
    def adapter(name, weights):
        folder = tmp_path / weights
        folder.mkdir(exist_ok=True)
        (folder / 'adapter_model.safetensors').write_bytes(weights.encode())
        return types.SimpleNamespace(lora_name=name, lora_path=str(folder), lora_int_id=1)

    # vLLM's hash has the name of an adapter; here not even that: the weights set it apart.
    answer(engine(), PROMPT, lora=adapter('x', 'one'))
    for other in (None, adapter('x', 'two')):
        third = engine()
        answer(third, PROMPT, lora=other)
        assert third.external_tokens == 0
    same = engine()
    answer(same, PROMPT, lora=adapter('x', 'one'))
    assert same.external_tokens == 5 * BLOCK
    unreadable = types.SimpleNamespace(lora_name='y', lora_path=str(tmp_path / 'absent'), lora_int_id=2)
    before = len(pool.values)
    answer(engine(), [9, *PROMPT], lora=unreadable)
    assert len(pool.values) == before


def adapter(folder, weights, name='x', number=1, **more):
    folder.mkdir(exist_ok=True)
    (folder / 'adapter_model.safetensors').write_bytes(weights)
    return types.SimpleNamespace(lora_name=name, lora_path=str(folder), lora_int_id=number, **more)


def test_other_weights_under_an_adapters_name_or_number_are_not_shared(pool, tmp_path):
    """The old ones' blocks may lie in vLLM's own cache, and its workers may have either."""
    here, there = tmp_path / 'here', tmp_path / 'there'
    for again in (lambda: adapter(here, b'changed', load_inplace=True),  # written over, loaded in place
                  lambda: adapter(there, b'two', load_inplace=True),
                  lambda: adapter(here, b'changed'),  # not loaded again, but maybe when it is evicted
                  lambda: adapter(here, b'changed', number=2),  # unloaded, and loaded again
                  lambda: adapter(there, b'two', name='y')):
        pool.values.clear()
        one = engine()
        answer(one, PROMPT, lora=adapter(here, b'one'))
        saved = set(pool.values)
        assert saved
        answer(one, [9, *PROMPT], lora=again(), name='again')
        answer(one, [8, *PROMPT], lora=again(), name='and again')
        assert set(pool.values) == saved
        # A server that computes with the new weights finds none of the old ones' blocks.
        fresh = engine()
        answer(fresh, PROMPT, lora=again())
        assert not fresh.external_tokens


def test_requests_of_an_adapter_that_changes_save_no_more(pool, tmp_path):
    one = engine(blocks=64)
    one.add(Request('r', PROMPT, 40, lora=adapter(tmp_path / 'a', b'one')))
    for _ in range(8):
        one.step()
    one.add(Request('s', [9, *PROMPT], 6, lora=adapter(tmp_path / 'a', b'changed', load_inplace=True)))
    one.step()
    while one.workers[0]._worker._saves:
        one.step()
    saved = set(pool.values)
    one.drain()
    assert saved and set(pool.values) == saved


def test_an_adapter_that_was_loaded_again_is_shared_once_vllms_cache_is_reset(pool, tmp_path):
    one = engine()
    answer(one, PROMPT, lora=adapter(tmp_path / 'a', b'one'))
    answer(one, PROMPT, lora=adapter(tmp_path / 'a', b'changed', number=2), name='again')
    saved = set(pool.values)
    one.scheduler.reset_cache()
    answer(one, [9, *PROMPT], lora=adapter(tmp_path / 'a', b'changed', number=3), name='third')
    assert saved < set(pool.values)


def test_models_of_other_weights_do_not_share(pool, tmp_path, monkeypatch):
    """Under one name: a folder, a file, a snapshot of the Hub, or a commit there."""
    def snapshot_download(repo, revision, cache_dir, local_files_only, ignore_patterns):
        assert (repo, revision, local_files_only, ignore_patterns) == ('none/such', 'main', True, '*')
        return f'{cache_dir}/none/such'

    def kinds(weights):
        folder = tmp_path / weights / 'none' / 'such'
        folder.mkdir(parents=True, exist_ok=True)
        (folder / 'model.gguf').write_bytes(weights.encode())
        none = types.SimpleNamespace(to_dict=lambda: {'layers': 1})
        yield config(model_config__model=str(folder), model_config__hf_config=none)
        yield config(model_config__model=str(folder / 'model.gguf'), model_config__hf_config=none)
        yield config(model_config__revision='main', load_config__download_dir=str(tmp_path / weights),
                     model_config__hf_config=none)
        yield config(model_config__hf_config=types.SimpleNamespace(to_dict=none.to_dict, _commit_hash=weights))

    monkeypatch.setitem(sys.modules, 'huggingface_hub', types.SimpleNamespace(snapshot_download=snapshot_download))
    for one, same, two in zip(kinds('one'), kinds('one'), kinds('two')):
        pool.values.clear()
        answer(engine(of=one), PROMPT)
        for of, found in ((same, 5), (two, 0)):
            other = engine(of=of)
            answer(other, PROMPT)
            assert other.external_tokens == found * BLOCK


def test_a_model_whose_weights_nothing_names_is_not_shared(pool, caplog):
    of = config(model_config__hf_config=types.SimpleNamespace(to_dict=lambda: {'layers': 1}))
    answer(engine(of=of), PROMPT)
    assert not pool.values and not pool.lookups and 'shares nothing' in caplog.text


def test_nothing_of_before_a_reset_is_found(pool):
    """vLLM resets when weights change in place; what runs then may have blocks of the old ones."""
    one, two = engine(blocks=64), engine()
    answer(two, PROMPT)
    one.add(Request('r', [*PROMPT, *PROMPT], 20))
    for _ in range(8):
        one.step()
    while one.workers[0]._worker._saves:
        one.step()
    before = set(pool.values)
    assert len(before) > 5
    for _ in range(2):
        assert one.scheduler.reset_cache()
        one.cached.clear()
        one.drain()
        assert set(pool.values) == before
        external = one.external_tokens
        answer(one, PROMPT, name='after')
        assert one.external_tokens == external and set(pool.values) > before
        before = set(pool.values)
    one.cached.clear()
    answer(one, PROMPT, name='again')  # of its own
    assert one.external_tokens == external + 5 * BLOCK
    third = engine()
    answer(third, PROMPT)
    assert third.external_tokens == 5 * BLOCK


def test_a_lost_block_is_computed(pool):
    want = answer(engine(), PROMPT)
    keys = list(pool.values)
    for lost in range(5):
        pool.lose = lambda key, lost=lost: key == keys[lost]
        second = engine()
        assert answer(second, PROMPT) == want
        assert second.external_tokens == 5 * BLOCK
    pool.lose = lambda key: True
    assert answer(engine(), PROMPT) == want


def test_a_lost_block_is_saved_again(pool):
    answer(engine(), PROMPT)
    lost = list(pool.values)[2]
    pool.lose = lambda key: bool(pool.values.pop(lost, None))
    answer(engine(), PROMPT)
    assert lost in pool.values


def test_what_the_pool_evicted_is_saved_again(pool):
    first = engine(blocks=8)
    answer(first, PROMPT)
    saved = set(pool.values)
    pool.values.clear()
    answer(first, range(200, 224), name='other')  # takes the place of its own blocks
    answer(first, PROMPT, name='again')
    assert saved <= set(pool.values)


def test_what_the_pool_refused_is_saved_later(pool):
    first = engine()
    pool.refuse_puts = True
    answer(first, PROMPT)
    assert not pool.values
    pool.refuse_puts = False
    answer(first, PROMPT, name='again')
    assert len(pool.values) >= 5


def test_nothing_is_saved_twice(pool):
    first = engine()
    answer(first, PROMPT)
    puts = pool.puts
    answer(first, PROMPT, name='again')
    assert pool.puts == puts


def test_a_full_queue_drops_saves(pool):
    first = engine(extra={'save-queue': '1B'})
    FakePool.random = random.Random(2)
    for at in range(4):
        first.add(Request(f'r{at}', [at, *PROMPT], 4))
    first.drain()
    again = engine()
    answer(again, [0, *PROMPT])


def test_an_aborted_load_keeps_its_blocks_until_it_ends(pool):
    answer(engine(), PROMPT)
    second = engine(blocks=8)
    FakePool.random = types.SimpleNamespace(random=lambda: 1.0, randrange=lambda n: 0)  # nothing ends
    request = Request('r', PROMPT, 4)
    second.add(request)
    second.step()
    assert request.status == 'loading'
    second.finish(request)
    second.step()
    assert request.blocks and len(second.free) < 8
    FakePool.random = random.Random(3)
    second.drain()
    assert len(second.free) == 8


@pytest.mark.parametrize('seed', range(24))
def test_under_all_kinds_of_trouble_no_token_is_wrong(pool, seed, ranks=1):
    """Shared prefixes, too few blocks, preemption, aborts, lost values, full pools, late copies."""
    chance = FakePool.random = random.Random(seed)
    trunks = [[chance.randrange(50) for _ in range(30)] for _ in range(3)]
    expected = {}
    engines = [engine(blocks=chance.randrange(14, 24), budget=chance.randrange(3, 20),
                      ranks=ranks) for _ in range(2)]
    pool.lose = lambda key: chance.random() < 0.1
    for number in range(30):
        trunk, on = chance.choice(trunks), chance.choice(engines)
        salt = chance.choice([None, None, 's'])
        prompt = trunk[: chance.randrange(1, 30)] + [chance.randrange(3)]
        request = Request(f'r{number}', prompt, chance.randrange(1, 12), salt=salt)
        on.add(request)
        pool.refuse_puts = chance.random() < 0.1
        for _ in range(chance.randrange(6)):
            on.step()
        if chance.random() < 0.15 and request.request_id in on.all and request.status != 'finished':
            on.finish(request)
        if chance.random() < 0.1 and pool.values:
            pool.values.pop(chance.choice(list(pool.values)))
        expected[number] = prompt
    for on in engines:
        on.drain()
        assert len(on.free) == len(on.users), 'blocks are lost'
    assert pool.puts


@pytest.mark.parametrize('seed', range(8))
def test_no_token_is_wrong_in_any_rank(pool, seed):
    test_under_all_kinds_of_trouble_no_token_is_wrong(pool, seed, ranks=2)


def test_two_workers_of_one_rank_are_refused(pool):
    one = engine()
    told = one.workers[0].get_handshake_metadata()
    with pytest.raises(ValueError, match='one rank'):
        one.scheduler.set_xfer_handshake_metadata({0: told, 1: told})


def test_a_block_that_one_rank_lost_is_not_found(pool):
    want = answer(engine(ranks=2), PROMPT)
    for name in [name for name in pool.values if b'tp1/2' in name][2:]:
        del pool.values[name]
    second = engine(ranks=2)
    assert answer(second, PROMPT) == want
    assert second.external_tokens == 2 * BLOCK


class Broken:
    """Faults planted in the connector. A test must see each."""

    @staticmethod
    def ignores_failures(c):
        c.get_block_ids_with_load_errors = lambda: set()

    @staticmethod
    def forgets_the_rank(c):
        if c._scheduler is None:
            register = c.register_kv_caches
            c.register_kv_caches = lambda caches: (register(caches), setattr(c._worker, '_rank', 'all'))
        else:
            c._scopes = types.SimpleNamespace(get=lambda scope: [connector.keys.prefix(scope, 'all')])

    @staticmethod
    def off_by_one(c):
        allocated = c._scheduler.allocated if c._scheduler else None
        if allocated:
            c._scheduler.allocated = lambda r, ids, n: allocated(r, [*ids[1:], ids[0]], n)

    @staticmethod
    def does_not_wait(c):
        c.handle_preemptions = lambda metadata: None

    @staticmethod
    def frees_too_early(c):
        if c._scheduler:
            finished = c._scheduler.finished
            c._scheduler.finished = lambda r, b: (finished(r, b), False)[1]


@pytest.mark.parametrize('fault', [name for name in vars(Broken) if name[0] != '_'])
def test_planted_faults_are_seen(pool, fault, monkeypatch):
    init = connector.McConnector.__init__

    def broken(self, *args):
        init(self, *args)
        getattr(Broken, fault)(self)

    monkeypatch.setattr(connector.McConnector, '__init__', broken)
    seen = 0
    for seed in range(8):
        pool.values.clear()
        try:
            test_under_all_kinds_of_trouble_no_token_is_wrong(pool, seed, 1 + (fault == 'forgets_the_rank'))
        except (WrongToken, AssertionError, KeyError):
            seen += 1
    assert seen, f'no test sees a connector that {fault}'


@pytest.mark.parametrize('version', ['0.29.0', '0.32.0'])
def test_the_interface_is_the_recorded_one(version):
    """Names and parameters of the stand-in and of McConnector, as the real package has them."""
    with open(os.path.join(os.path.dirname(__file__), 'fixtures', f'vllm-{version}.json')) as file:
        real = json.load(file)
    stand_in = vllm_record.record(base, vllm_record.CLASSES)
    for name, members in stand_in.items():
        for member, what in members.items():
            assert real[name].get(member) == what, f'{name}.{member}'
    interface = {**real['KVConnectorBase_V1'], **real['SupportsHMA']}
    mine = vllm_record.record(connector, ['McConnector'])['McConnector']
    for member, what in mine.items():
        if not member.startswith('_') or member == '__init__':
            assert interface[member]['parameters'] == what['parameters'], member
    missing = {m for m, what in interface.items() if what['abstract']} - set(mine)
    assert not missing


def test_known_by_name():
    """MultiConnector reads what a child counted by the class of that name, else the server ends."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    assert KVConnectorFactory.get_connector_class_by_name('McConnector') is connector.McConnector


def test_tensors_that_are_no_blocks_are_refused():
    from mc.vllm import layout
    row = BLOCK * 8
    cpu = Tensor((8, 2, BLOCK, 4), (row, BLOCK * 4, 4, 1))
    assert layout.regions_of({'a': cpu}, 8) == [layout.Region(1 << 20, row * 4, row * 4)]
    halves = Tensor((2, 8, BLOCK, 1, 4), (8 * row, row, 4, 4, 1))
    with pytest.raises(layout.Unsupported, match='not one piece'):
        layout.regions_of({'a': Tensor((8, 2, BLOCK, 4), (row * 2, BLOCK * 8, 4, 1))}, 8)
    halves = Tensor((2, 8, BLOCK, 1, 8), (8 * row, row, 8, 8, 1))
    assert [r.base - (1 << 20) for r in layout.regions_of({'a': halves}, 8)] == [0, 8 * row * 4]
    for wrong, why in ((Tensor((9, 2, BLOCK, 4), (row, BLOCK * 4, 4, 1)), 'first dimension'),
                       (Tensor((8, 2, BLOCK, 4), (1, BLOCK * 4, 4, 1)), 'one piece|overlap'),
                       (Tensor((8, row), (row, 1), device='cuda:0'), 'cuda:0'),
                       ([cpu], 'no tensor')):
        with pytest.raises(layout.Unsupported, match=why):
            layout.regions_of({'a': wrong}, 8)
    with pytest.raises(layout.Unsupported, match='share memory'):
        layout.regions_of({'a': cpu, 'b': Tensor(cpu.shape, cpu.stride(), (1 << 20) + 4)}, 8)
    assert len(layout.regions_of({'a': cpu, 'b': cpu}, 8)) == 1
    between = [Tensor((8, 8), (16, 1), address=1 << 20), Tensor((8, 8), (16, 1), address=(1 << 20) + 32)]
    assert len(layout.regions_of(dict(enumerate(between)), 8)) == 2


def test_the_doctor_says_why_engines_do_not_share(pool):
    for of in (config(), config(model_config__dtype='bfloat16')):
        engine(of=of).scheduler._teller.join()
    told = [json.loads(value) for value in pool.told.values()]
    assert [row['model'] for row in told] == ['none/such'] * 2
    assert doctor.differences(told) == ['dtype: "float32" / "bfloat16"']


def test_offered_memory_is_split_over_the_ranks(pool):
    both = engine(of=config({'offer': '6GiB'}, parallel_config__tensor_parallel_size=2,
                            parallel_config__world_size=2), ranks=2)
    assert [worker._pool.offered for worker in both.workers] == [3 << 30] * 2


def test_what_would_give_wrong_tokens_is_refused(pool):
    for change, why in (
            ({'cache_config__prefix_caching_hash_algo': 'xxhash'}, 'not fit to be shared'),
            ({'__speculative_config': types.SimpleNamespace(method='eagle')}, 'eagle'),
            ({'parallel_config__decode_context_parallel_size': 2}, 'decode_context_parallel_size')):
        with pytest.raises(ValueError, match=why):
            engine(of=config(**change))
    for extra, why in (({'lod': 'async'}, "did you mean 'load'"), ({'load': 'sync'}, 'none of'),
                       ({'timeout': '2 parsecs'}, 'timeout'), ({'save-decoded': 'no'}, 'true nor false')):
        with pytest.raises(ValueError, match=why):
            engine(extra=extra)


def test_engines_that_compute_other_bytes_do_not_share(pool):
    answer(engine(), PROMPT)
    for change in ({'model_config__dtype': 'bfloat16'}, {'cache_config__cache_dtype': 'fp8'},
                   {'model_config__hf_config': types.SimpleNamespace(to_dict=lambda: {'layers': 2}, _commit_hash='c0ffee')},
                   {'model_config__max_model_len': 65}, {'model_config__quantization': 'awq'},
                   {'compilation_config__static_forward_context': {'l0': Amx()}},
                   {'parallel_config__tensor_parallel_size': 2}):
        other = engine(of=config(**change))
        answer(other, PROMPT)
        assert other.external_tokens == 0, change


class Amx(Layer):
    isa = 'amx'


def test_a_step_with_nothing_to_compute_waits_a_little_for_what_moves():
    """vLLM steps on until the blocks of a finished request are saved, each step through all its processes."""
    class Moving:
        waited, ended = [], []

        def put(self, tag, *words):
            self.tag = tag

        def take(self):
            out, self.ended = self.ended, []
            return out

        def wait(self, seconds=0.0):
            self.waited.append(seconds)
            if len(self.waited) == 2:
                self.ended = [Done(self.tag, [0], 0.1)]

    pool_ = Moving()
    worker = Worker(pool_, 'tp0', 1, save_queue=99, save_waits=False, observe=lambda *words: None)
    worker.save(Plan(saves=[Transfer('r', 's', b'h' * 32, [3])], release=['r']))
    assert worker.finished().sent == set() and not pool_.waited  # others compute meanwhile
    assert worker.finished(True).sent == set() and len(pool_.waited) == 1 and 0 < pool_.waited[0] < 0.05
    assert worker.finished(True).sent == {'r'} and len(pool_.waited) == 2


def test_a_late_pool_keeps_nobody_waiting():
    now, begun, released = [0.0], threading.Event(), threading.Event()

    def match(prefixes, hashes, count, within=0.0):
        begun.set()
        released.wait(30)
        return count

    seen = []
    lookups = Lookups(match, 0.05, lambda what, seconds: seen.append(what), quick=0, clock=lambda: now[0])
    assert lookups.ask('r', [b'p'], b'h' * 32, 1) is None
    begun.wait(30)
    now[0] = 0.04
    assert lookups.ask('r', [b'p'], b'h' * 32, 1) is None
    now[0] = 0.06
    assert lookups.ask('r', [b'p'], b'h' * 32, 1) == 0
    for request in ('s', 't'):
        assert lookups.ask(request, [b'p'], b'h' * 32, 1) is None
        now[0] += 0.06
        assert lookups.ask(request, [b'p'], b'h' * 32, 1) == 0
    assert lookups.ask('u', [b'p'], b'h' * 32, 1) == 0  # at once: three were late
    assert seen == ['late'] * 3 + ['skipped']
    released.set()
    now[0] += 2
    answer_ = lookups.ask('v', [b'p'], b'h' * 32, 1)
    while answer_ is None:
        answer_ = lookups.ask('v', [b'p'], b'h' * 32, 1)
    assert answer_ == 1
    lookups.close(30)


def test_an_answer_that_is_soon_there_is_given_by_the_asking_thread():
    asked, slow = [], [False]

    def match(prefixes, hashes, count, within=0.0):
        asked.append((threading.current_thread(), within))
        return None if slow[0] and within else count

    seen, mine = [], threading.current_thread()
    lookups = Lookups(match, 30, lambda what, seconds: seen.append(what), quick=0.5)
    assert lookups.ask('r', [b'p'], b'h' * 32, 1) == 1
    assert asked == [(mine, 0.5)] and seen == ['lookup']
    slow[0] = True  # then another thread goes on, and nobody else waits beside it
    assert lookups.ask('s', [b'p'], b'h' * 32, 1) in (None, 1)
    while (answer_ := lookups.ask('s', [b'p'], b'h' * 32, 1)) is None:
        pass
    assert answer_ == 1 and asked[1] == (mine, 0.5)
    assert asked[2][0] is not mine and asked[2][1] == 0 and len(asked) == 3
    assert seen == ['lookup'] * 2
    lookups.close(30)


def test_the_pool_of_these_tests_has_what_the_real_one_has():
    mine, real = (vllm_record.record(types.SimpleNamespace(Pool=of), ['Pool'])['Pool']
                  for of in (FakePool, connector.Pool))
    for name, what in real.items():
        if not name.startswith('_'):
            assert mine[name] == what, name
    assert {name for name in mine if not name.startswith('_')} <= set(real)
