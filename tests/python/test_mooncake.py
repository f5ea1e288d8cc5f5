"""mc.compat.mooncake answers as the real package does, whose answers are in fixtures/mooncake.json."""
import json
import os
import pathlib
import subprocess
import sys

import mc.cluster
import pytest
from mc.compat.mooncake import codes, config, engine, patterns, store

HERE = pathlib.Path(__file__).parent
REAL = json.loads((HERE / 'fixtures/mooncake.json').read_text())


def differences():
    allowed = {}
    for line in (HERE / 'fixtures/mooncake-differences.txt').read_text().splitlines():
        if line and line[0] != '#':
            step, place, rest = line.split(' ', 2)
            allowed[step, int(place)] = json.loads(rest.split(' | ')[0])
    return allowed


@pytest.fixture(scope='module')
def pool():
    with mc.cluster.Cluster(nodes=0, lease_ttl='60s') as c:
        yield c


@pytest.fixture(scope='module')
def shared(pool):
    s = store.MooncakeDistributedStore()
    assert s.setup('host', '', 4 << 20, 0, 'tcp', '', pool.master) == 0
    yield s
    s.close()


@pytest.fixture(scope='module')
def answers(pool):
    out = subprocess.run([sys.executable, HERE / 'mooncake_answers.py', pool.master], timeout=200,
                         env={**os.environ, 'MC_COMPAT': '1'}, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    found = {}
    for line in out.stdout.splitlines():
        found.update(json.loads(line))
    return found


@pytest.mark.parametrize('step', REAL)
def test_answers(answers, step):
    want, allowed = REAL[step], differences()
    if isinstance(want, list):
        want = [allowed.get((step, n), answer) for n, answer in enumerate(want)]
    assert answers[step] == want


def test_every_name_is_there_or_refused():
    names = set((HERE / 'fixtures/mooncake-names.txt').read_text().split())
    s, e = store.MooncakeDistributedStore(), engine.TransferEngine()
    for name in names:
        owner, _, method = name.partition('.')
        assert callable(getattr({'store': s, 'engine': e}[owner], method)), name
    for name in ('put_tensor_with_tp', 'get_tensor_into_cuda', 'mount_segment', 'init_all',
                 'create_copy_task'):
        with pytest.raises(NotImplementedError, match=f'{name} is not in mc: use '):
            getattr(s, name)()
    with pytest.raises(NotImplementedError):
        e.get_engine_ptr()
    assert e.get_engine() is e
    with pytest.raises(AttributeError):
        s.no_such_method()
    assert s.batch_put_session_start(['a', 'b'], [1, 1]) == [-1, -1]


def test_before_setup_and_after_close():
    s = store.MooncakeDistributedStore()
    for _ in range(2):
        assert s.health_check() == 1 and s.get('a') == b'' and s.get_buffer('a') is None
        assert s.batch_put_from_multi_buffers(['a'], [[1]], [[1]]) == []
        assert s.batch_get_into_multi_buffers(['a'], [[1]], [[1]]) == []
        assert s.put('a', b'x') == s.is_exist('a') == s.get_size('a') == s.remove('a') == -1
        assert s.batch_is_exist(['a', 'b']) == s.batch_get_into(['a', 'b'], [1, 2], [1, 1]) == [-1, -1]
        assert s.register_buffer(1, 1) == s.unregister_buffer(1) == s.remove_all() == -1
        assert s.close() == 0


def test_setup(pool):
    s = store.MooncakeDistributedStore()
    settings = {'local_hostname': 'host', 'metadata_server': '', 'global_segment_size': '4MB',
                'local_buffer_size': '1MB', 'protocol': 'tcp', 'master_server_addr': pool.master}
    assert s.setup({**settings, 'enable_ssd_offload': 'true'}) == -1012
    assert s.setup({**settings, 'protocol': 'cxl'}) == -1012
    assert s.setup({**settings, 'global_segment_size': 'much'}) == -600
    assert s.setup({**settings, 'master_server_addr': '127.0.0.1:1'}) < 0 and s.health_check() == 1
    assert s.setup(settings) == 0 and s.health_check() == 0
    t = store.MooncakeDistributedStore()
    assert t.setup({**settings, 'global_segment_size': 0, 'tenant_id': 'other'}) == 0
    assert s.put('ours', b'x') == 0 and s.is_exist('ours') == 1 and t.is_exist('ours') == 0
    assert s.close() == t.close() == 0
    assert store.MooncakeDistributedStore().setup_dummy(0, 0, pool.master) == 0


def test_a_client_prefers_its_own_segment_by_its_hostname():
    with mc.cluster.Cluster(nodes=2, size='16MiB') as c:
        s = store.MooncakeDistributedStore()
        assert s.setup('host', 'P2PHANDSHAKE', 16 << 20, 0, 'tcp', '', c.master) == 0
        while s._store.health(60).nodes < 3:
            pass
        how = store.ReplicateConfig()
        how.preferred_segment = s.get_hostname()
        names = [f'own{n}' for n in range(20)]
        assert {s.put(name, b'x' * 1000, how) for name in names} == {0}
        assert s.batch_put_session_start(['part'], [1], how) == [0]
        found = {s.get_replica_desc(name)[0].get_memory_descriptor().buffer_descriptor.transport_endpoint
                 for name in names}
        assert len(found) == 1 and found.pop().startswith('host-')
        s.close()


def test_the_master_is_gone():
    with mc.cluster.Cluster(nodes=0) as c:
        s = store.MooncakeDistributedStore()
        assert s.setup('host', '', 4 << 20, 0, 'tcp', '', c.master) == 0
        c.kill('master')
        assert s.health_check() == 2
        assert s.batch_is_exist(['a', 'b']) == [-1, -1]
        s.close()


@pytest.mark.parametrize('code, put, remove, other', [
    (0, 0, 0, 0), (1, -600, -600, -600), (2, -704, -704, -704), (3, 0, -705, -705),
    (4, -200, -600, -600), (5, -703, -706, -703), (6, -901, -901, -901), (7, -900, -900, -900),
    (8, -707, -707, -707), (9, -801, -801, -801), (10, -601, -601, -601),
    (11, -1012, -1012, -1012), (12, -1, -1, -1)])
def test_codes(code, put, remove, other):
    assert (codes.of_put(code), codes.of_remove(code), codes.of(code)) == (put, remove, other)


def test_config():
    c = config.ReplicateConfig()
    c.replica_num, c.soft_pin_action, c.soft_pin_ttl_ms = 2, config.SoftPinAction.ENABLE, 1500
    c.preferred_segments, c.group_ids = ['n1', 'n2'], ['g', 'h', 'g']
    first, second = config.put_options(c, keys=3).shares(['a', 'b', 'c'])
    assert first[1] == ['a', 'c'] and second[1] == ['b'] and second[0].group == 'h'
    how = first[0]
    assert (how.replicas, how.pin, how.ttl, how.prefer, how.group) == (2, 'soft', 1.5, ['n1', 'n2'], 'g')
    assert config.put_options(c).code == -600  # groups of three keys
    c.dfs_replica_num = 1
    assert config.put_options(c).code == -1601
    with pytest.raises(TypeError):
        config.put_options(3)
    assert [config.size_of(x) for x in (7, '4GB', '1.5 MB', '16KiB', '9')] == [
        7, 4 << 30, 3 << 19, 1 << 14, 9]


def test_patterns():
    def found(pattern, text):
        return bool(patterns.compiled(pattern).search(text.encode()))
    assert found(r'^a\.b$', 'a.b') and not found(r'^a\.b$', 'a.bc') and found('[[:upper:]]{2}', 'xAB')
    assert found('(a|b)\\1', 'bb') and not found('(a|b)\\1', 'ab') and found('[^a-c]$', 'ad')
    assert found('x++', 'xx') and found('a{2,}?', 'aa') and found(r'\x41\u0042\cA', 'AB\x01')
    for wrong in ('*', 'a)', '(a', '[a', 'a{', '(?#c)', '(?i)a', '\\', '\\2', '[[:no:]]', 'a{3,1}', '^*'):
        with pytest.raises(ValueError):
            patterns.compiled(wrong)


@pytest.mark.parametrize('call', [
    ('get', 5), ('put', 'a', 'text'), ('put', 'a', b'x', 3), ('get_into', 'a', 1, -1), ('put_from', 'a', 'b', 1),
    ('batch_is_exist', 'ab'), ('get_batch', [1]), ('remove', 'a', 'yes'), ('remove_by_regex', 3)])
def test_wrong_types(shared, call):
    with pytest.raises(TypeError):
        getattr(shared, call[0])(*call[1:])


def run(*words, **environment):
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **environment})


def test_the_import_name(tmp_path):
    program = tmp_path / 'program.py'
    program.write_text('import sys, mooncake.store, mooncake.engine\n'
                       'from mooncake.store import MooncakeDistributedStore, ReplicateConfig\n'
                       'from mooncake.engine import TransferEngine\n'
                       'print(sys.argv[1:], MooncakeDistributedStore.__module__)\n')
    out = run('-m', 'mc.compat.mooncake', 'run', str(program), 'word')
    assert out.stdout == "['word'] mc.compat.mooncake.store\n", out
    assert run('-m', 'mc.compat.mooncake').returncode == 2
    shim = pathlib.Path(mc.__file__).parent / 'compat/shim'
    path = f'{shim}{os.pathsep}{os.environ["PYTHONPATH"]}'
    out = run(str(program), PYTHONPATH=path)
    assert out.stdout == "[] mc.compat.mooncake.store\n", out
    real = tmp_path / 'mooncake_transfer_engine-0.3.dist-info'
    real.mkdir()
    (real / 'METADATA').write_text('Name: mooncake-transfer-engine\nVersion: 0.3\n')
    out = run(str(program), PYTHONPATH=f'{path}{os.pathsep}{tmp_path}')
    assert 'mooncake-transfer-engine 0.3 are both installed' in out.stderr, out
    assert run('-c', 'import mc, sys; assert "mooncake" not in sys.modules').returncode == 0


def test_a_tensor_header():
    from mc.compat.mooncake import tensors

    class Tensor:
        dtype, shape = 'torch.bfloat16', (2, 3)

        def dim(self):
            return len(self.shape)

    head = tensors.header_of(Tensor())
    assert len(head) == 64 and head[:8] == b'mctensor'
    with pytest.raises(ValueError):
        tensors.header_of(type('T', (Tensor,), {'dtype': 'torch.quint8'})())
    torch = pytest.importorskip('torch')
    assert tensors.tensor_of(bytearray(head + bytes(12))).dtype is torch.bfloat16
    assert tensors.tensor_of(bytearray(head + bytes(11))) is None
