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
    assert run('--help').returncode == 2
    with mc.cluster.Cluster(nodes=0) as empty:
        out = run(empty.master)
        assert out.returncode == 1 and 'FAULT   nodes' in out.stdout, out


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
