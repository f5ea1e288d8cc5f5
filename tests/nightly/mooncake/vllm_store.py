#!/usr/bin/env python3
"""vLLM's own MooncakeStoreConnector, unchanged, on a CPU over mc: what a server saved it finds again.

`import mooncake` is mc.compat.mooncake, by a sitecustomize. The connector records a CUDA event before it
saves, for which a CPU has no counterpart: `torch.cuda.Event` is a stand-in that is always ready.
"""
import json
import os
import pathlib
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[2] / 'lib/python')]
import mc  # noqa: E402
import mc.cluster  # noqa: E402
import vllm_servers  # noqa: E402

SITE = '''
import os
import mc.compat.mooncake
mc.compat.mooncake.install()
import torch
class Event:
    def __init__(self, *words, **named): pass
    def record(self, *words): pass
    def synchronize(self): pass
    def query(self): return True
torch.cuda.Event = Event
'''


def main():
    with tempfile.TemporaryDirectory() as made, mc.cluster.Cluster(nodes=1, size='256MiB') as pool:
        folder = pathlib.Path(made)
        (folder / 'site').mkdir()
        (folder / 'site/sitecustomize.py').write_text(SITE)
        config = folder / 'mooncake.json'
        config.write_text(json.dumps({
            'metadata_server': 'P2PHANDSHAKE', 'master_server_address': pool.master, 'protocol': 'tcp',
            'mode': 'standalone-store', 'global_segment_size': 0, 'local_buffer_size': '64MB'}))
        os.environ['MOONCAKE_CONFIG_PATH'] = str(config)
        server = vllm_servers.Server(
            folder, 'store', '0.32.0', pool, kv='256M', longest=2048, path=(folder / 'site',),
            transfer=lambda _: {'kv_connector': 'MooncakeStoreConnector', 'kv_role': 'kv_both'})
        try:
            tokens = server.tokens('The history of the lighthouse is long. ' * 60)
            blocks = len(tokens) // vllm_servers.BLOCK
            first = server.complete(tokens)
            with mc.Store(pool.master) as store:
                end = time.monotonic() + 60
                while len(list(store.list())) < blocks and time.monotonic() < end:
                    time.sleep(0.05)
            server.forget()
            again = server.complete(tokens)
            good = first.cached == 0 and again.cached == blocks * vllm_servers.BLOCK and again.text == first.text
            print(f'vLLM 0.32.0, MooncakeStoreConnector: {again.cached} of {len(tokens)} tokens found again, '
                  f'{"the same text" if again.text == first.text else "ANOTHER TEXT"}')
            return 0 if good else 1
        finally:
            server.process.child.kill()
            server.process.child.wait()


if __name__ == '__main__':
    sys.exit(main())
