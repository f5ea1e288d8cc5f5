#!/usr/bin/env python3
"""programs.py --real VENV: programs of Mooncake's own wheel, over its store and over mc.compat.mooncake.

Its REST server (`mc_store_rest_server`) answers a list of HTTP requests, the same over both. Its asyncio
store carries out calls over ours. The programs are those of the wheel, unchanged;
over ours they find `mooncake.store` of mc by the import shim.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import differential
import mc.cluster

# Our modules `store` and `engine`; all others of the package are the wheel's.
SHIM = '''
import os, sys
if os.environ.get('MC_COMPAT'):
    import importlib.util, mc.compat.mooncake
    real = importlib.util.find_spec('mooncake').submodule_search_locations
    mc.compat.mooncake.install()
    sys.modules['mooncake'].__path__.extend(real)
'''
SERVER = SHIM + '''
from mooncake.mooncake_store_service import sync_main
from mooncake.store import MooncakeDistributedStore
print(MooncakeDistributedStore.__module__, flush=True)
sync_main()
'''
ASYNC = SHIM + '''
import asyncio, json
from mooncake.async_store import MooncakeDistributedStoreAsync
async def main():
    s = MooncakeDistributedStoreAsync()
    out = [await s.async_setup('127.0.0.1', 'P2PHANDSHAKE', 16 << 20, 16 << 20, 'tcp', '', sys.argv[1])]
    values = {f'async/{n}': bytes([n]) * (1000 * n + 1) for n in range(50)}
    out.append(await asyncio.gather(*(s.async_put(k, v) for k, v in values.items())))
    got = await asyncio.gather(*(s.async_get(k) for k in values))
    out += [got == list(values.values()), await s.async_batch_is_exist([*values, 'absent'])]
    out += [(await s.async_get('absent')).hex(), await s.async_remove_by_regex('^async/1', True)]
    out += [await s.async_is_exist('async/1'), await s.async_get_size('async/2')]
    print('ANSWER', json.dumps(out), flush=True)
    os._exit(0)
asyncio.run(main())
'''
REQUESTS = [
    ('GET', 'exist/absent', None), ('PUT', 'put', {'key': 'a', 'value': 'text'}), ('GET', 'get/a', None),
    ('GET', 'exist/a', None), ('PUT', 'put', {'key': 'a', 'value': 'other'}), ('GET', 'get/a', None),
    ('PUT', 'put', {'key': 'b', 'value': 'é' * 100_000}), ('GET', 'get/b', None), ('GET', 'get/absent', None),
    ('PUT', 'put', {'key': 'empty', 'value': ''}), ('GET', 'exist/empty', None), ('PUT', 'put', {'key': 'c'}),
    ('DELETE', 'remove/absent', None), ('PUT', 'put', {'key': 'd', 'value': 'x'}), ('DELETE', 'remove/d', None),
    ('GET', 'exist/d', None), ('DELETE', 'remove/a', None), ('DELETE', 'remove_all', None),
    ('GET', 'exist/a', None), ('PUT', 'put', [1]), ('GET', 'nothing', None)]


def http(port, method, path, body):
    request = urllib.request.Request(f'http://127.0.0.1:{port}/api/{path}', method=method,
                                     data=None if body is None else json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def served(python, environment, master):
    """Which store it was over, and the answers of the REST server."""
    port = differential.free_port()
    settings = {'local_hostname': '127.0.0.1', 'metadata_server': 'P2PHANDSHAKE', 'protocol': 'tcp',
                'global_segment_size': 64 << 20, 'local_buffer_size': 16 << 20,
                'master_server_address': master, 'device_name': ''}
    config = pathlib.Path(tempfile.mkstemp(suffix='.json')[1])
    config.write_text(json.dumps(settings))
    child = subprocess.Popen([python, '-c', SERVER, '--port', str(port), '--config', config],
                             text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    try:
        over = child.stdout.readline().strip()
        for _ in range(6000):
            if differential.listens(port) or child.poll() is not None:
                break
            differential.threading.Event().wait(0.01)
        return over, [http(port, *request) for request in REQUESTS]
    finally:
        child.kill()
        child.wait()
        config.unlink()


def called(python, environment, master):
    """The answers of the asyncio store."""
    out = subprocess.run([python, '-c', ASYNC, master], text=True, stdout=subprocess.PIPE, env=environment,
                         stderr=subprocess.PIPE, timeout=120)
    found = [line for line in out.stdout.splitlines() if line.startswith('ANSWER ')]
    assert found, out.stderr[-2000:]
    return json.loads(found[0][7:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--real', required=True)
    real = parser.parse_args().real
    python, plain = f'{real}/bin/python', dict(os.environ)
    plain.pop('PYTHONPATH', None)
    ours = {**plain, 'MC_COMPAT': '1', 'PYTHONPATH': str(differential.SOURCE / 'lib/python')}
    child, address = differential.real_master(real)
    bad = 0
    try:
        with mc.cluster.Cluster(nodes=0) as c:
            (one, theirs), (other, here) = served(python, plain, address), served(python, ours, c.master)
            assert (one, other) == ('mooncake.store', 'mc.compat.mooncake.store'), (one, other)
            for request, a, b in zip(REQUESTS, theirs, here):
                if a != b:
                    bad += 1
                    print(f'REST server, {request}: theirs {str(a)[:300]}, ours {str(b)[:300]}')
            print(f'REST server: {len(here)} answers over both stores, {bad} differ')
            # Over theirs some of these puts fail with -800 where an executor's threads call it.
            got = called(python, ours, c.master)
            if got != [0, [0] * 50, True, [1] * 50 + [0], '', 11, 0, 2001]:
                bad += 1
                print(f'asyncio store: {got}')
            print('asyncio store: 50 puts and gets at once, and others, over ours')
    finally:
        child.kill()
        child.wait()
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
