"""python3 -m mc.doctor."""
import json
import os
import subprocess
import sys

import mc
import mc.cluster
from mc import doctor


def run(*words, **environment):
    return subprocess.run([sys.executable, '-m', 'mc.doctor', *words], capture_output=True, text=True,
                          timeout=120, env={**os.environ, **environment})


def test_a_pool_in_order(cluster):
    out = run(cluster.master)
    assert out.returncode == 0, out
    assert 'there and back' in out.stdout and '2 ready' in out.stdout and 'FAULT' not in out.stdout


def test_what_is_wrong():
    out = run('127.0.0.1:1')
    assert out.returncode == 1 and 'FAULT   master' in out.stdout, out
    out = run(MC_LIBRARY='/nowhere/libmc.so')
    assert out.returncode == 1 and '/nowhere/libmc.so' in out.stdout + out.stderr, out
    assert run('--help').returncode == 0 and run('--key').returncode == 2
    with mc.cluster.Cluster(nodes=0) as empty:
        out = run(empty.master)
        assert out.returncode == 1 and 'FAULT   nodes' in out.stdout, out


def test_a_pool_with_a_secret(tmp_path):
    key, other = tmp_path / 'key', tmp_path / 'other'
    for file in (key, other):
        file.write_text(file.name * 16)
        file.chmod(0o600)
    with mc.cluster.Cluster(nodes=0, cluster_key=key) as own:
        for words, environment in ((['--cluster-key', str(key)], {}), ([], {'MC_CLUSTER_KEY': str(key)})):
            out = run(own.master, *words, **environment)
            assert f'ok      master       {own.master}' in out.stdout, out
        for words in ([], ['--cluster-key', str(other)]):
            assert 'FAULT   master' in run(own.master, *words).stdout
    key.chmod(0o644)
    out = run('127.0.0.1:1', '--cluster-key', str(key))
    assert out.returncode == 1 and 'FAULT   options' in out.stdout and str(key) in out.stdout, out


def test_engines_of_a_tenant(cluster):
    with mc.Store(cluster.master, tenant='t') as s:
        s.put(doctor.KEYS + 'a', json.dumps({'model': 'of t'}).encode())
    assert 'of t: all that were here' in run(cluster.master, '--tenant', 't').stdout
    assert 'of t' not in run(cluster.master).stdout


def test_engines_that_cannot_share(store):
    same = {'model': 'm', 'dtype': 'bfloat16', 'layers': [1, 2]}
    for name, parts in (('a', same), ('b', {**same, 'dtype': 'float32'}),
                        ('c', {**same, 'model': 'alone'})):
        store.put(doctor.KEYS + name, json.dumps(parts).encode())
    store.put(doctor.KEYS + 'broken', b'no JSON')
    lines = []
    report = doctor.Report(lines.append)
    doctor.compare(report, doctor._fingerprints(store))
    text = '\n'.join(lines)
    assert 'm: 2 kinds that do not share' in text and 'dtype: "bfloat16" / "float32"' in text
    assert 'alone: all that were here can share' in text and 'layers' not in text
    assert report.faults == 0
    told = subprocess.run([f'{os.environ["MC_BIN"]}/mc-store', 'doctor', '--master', store.master],
                          capture_output=True, text=True, timeout=60)
    assert told.returncode == 1, told
    assert told.stdout == ('alone: all engines that were here can share\n'
                           'm: 2 kinds of engines that do not share; they differ in\n'
                           '  dtype: "bfloat16" / "float32"\n')
    told = subprocess.run([f'{os.environ["MC_BIN"]}/mc-store', 'doctor', '--master', store.master,
                           '--output', 'json'], capture_output=True, text=True, timeout=60)
    assert json.loads(told.stdout.splitlines()[1]) == {
        'model': 'm', 'kinds': 2, 'differ': {'dtype': ['bfloat16', 'float32']}}
