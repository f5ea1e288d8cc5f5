"""What answers the conversations of bench/agentic.py: two servers, and what is beneath them."""
import json
import os
import pathlib
import subprocess
import sys
import types
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / 'tests/nightly'))

from agentic_load import BLOCK, BLOCK_BYTES, SAID  # noqa: E402
from lmcache_servers import CONNECTOR, LMCACHE, Lmcache, packages_behind  # noqa: E402
from vllm_client import Counters, stream, used  # noqa: E402
from vllm_servers import BIN, ENGINES, Front, Pool, Process, Server, free_port, wait_for  # noqa: E402

VERSION = '0.32.0'
MOONCAKE = ENGINES / 'mooncake'
# vLLM's connector records a CUDA event before it saves; a CPU has nothing to wait for.
READY_EVENT = '''
import torch
class Event:
    def __init__(self, *words, **named): pass
    def record(self, *words): pass
    def synchronize(self): pass
    def query(self): return True
torch.cuda.Event = Event
'''


class Group:
    """Two servers of vLLM, alone. The others have something beneath."""

    needs = ()  # folders in ENGINES
    shared = False  # what one computed the other finds
    resets = False  # vLLM's reset empties what is beneath as well
    turned = False  # its own conductor deals the turns out

    def __init__(self, folder, load):
        self.folder, self.load = folder, load
        self.events, self.replays = ([free_port() for _ in range(2)] for _ in range(2))
        self.servers, self.conductor = [], None

    # ---- of each kind

    def beneath(self):
        """Starts what is beneath the servers."""

    def more(self):
        """The pool of `Server`, and its further words."""
        return None, {}

    def processes(self):
        return []

    def empty(self):
        """What is beneath, once the servers have reset."""

    def loaded_saved(self, counted):
        """Bytes; None: not known."""
        return None

    # ----

    def room(self):
        """Bytes for all that the conversations have."""
        whole = self.load.conversations * self.load.longest // BLOCK * BLOCK_BYTES
        return (whole * 5 // 4) + (64 << 20)

    def begin(self):
        self.beneath()
        self.servers += [self.start(at) for at in range(2)]
        for server in self.servers:
            server.wait()
        for server in self.servers:  # what is slow the first time only
            stream('127.0.0.1', server.port, [5] * (self.load.longest // 2), SAID)

    def start(self, at, port=None):
        # vLLM binds what has a star, and connects to all else.
        events = {'enable_kv_cache_events': True, 'publisher': 'zmq', 'endpoint': f'tcp://*:{self.events[at]}',
                  'replay_endpoint': f'tcp://*:{self.replays[at]}'}
        pool, more = self.more()
        flags = ['--kv-events-config', json.dumps(events), *more.pop('flags', ())]
        return Server(self.folder, f'{type(self).__name__.lower()}{at}', VERSION, pool, longest=self.load.longest,
                      kv=self.load.blocks() * BLOCK_BYTES, wait=False, threads='1', port=port, flags=flags, **more)

    def clean(self):
        """Nothing is cached anywhere."""
        external = 'true' if self.resets else 'false'

        def done(server):
            status, text = server.ask('POST', f'/reset_prefix_cache?reset_external={external}')
            return status == 200 and json.loads(text)['success']

        for server in self.servers:
            wait_for(f'a reset of {server.name}', lambda server=server: done(server), 60)
        self.empty()

    def front(self):
        """mc-conductor before the servers."""
        self.conductor = Front(self.folder, [
            {'instance_id': server.name, 'url': f'http://127.0.0.1:{server.port}', 'modelname': 'm', 'block_size': BLOCK,
             'endpoint': f'tcp://127.0.0.1:{events}', 'replay_endpoint': f'tcp://127.0.0.1:{replays}', 'kv_group': server.name}
            for server, events, replays in zip(self.servers, self.events, self.replays)], '--policy', 'kvcache')

    def end_front(self):
        if self.conductor:
            self.conductor.process.stop()
        self.conductor = None

    def ask(self, at, prompt):
        """The answer to a turn; `at`: the server that it goes to, if nobody chooses another."""
        if self.conductor:
            return stream('127.0.0.1', self.conductor.port, prompt, SAID, model=self.conductor.model)
        return stream('127.0.0.1', self.servers[at].port, prompt, SAID)

    def counters(self):
        return [Counters(server.ask('GET', '/metrics')[1]) for server in self.servers]

    def pool_tokens(self, counted):
        return sum(each.get('vllm:external_prefix_cache_hits_total') for each in counted)

    def used(self):
        """CPU seconds and memory at most, in bytes: of the servers, of the pool, of the conductor."""
        out = {'servers': used(*(server.process for server in self.servers))}
        if self.processes():
            out['pool'] = used(*self.processes())
        if self.conductor:
            out['conductor'] = used(self.conductor.process)
        return out

    def stop(self):
        self.end_front()
        for process in [*(server.process for server in self.servers), *self.processes()]:
            process.stop()


class Shm(Group):
    """McConnector on a pool, by shared memory. A reset of what is beneath would give each server a scope of its own."""

    shared = True
    transports = {}

    def beneath(self):
        self.pool = Pool(self.folder, segment=f'{self.room() >> 20}MiB')

    def more(self):
        return self.pool, dict(self.transports)

    def processes(self):
        return [self.pool.process, *self.pool.nodes.values()] if hasattr(self, 'pool') else []

    def empty(self):
        self.pool.remove('vllm:')

    def loaded_saved(self, counted):
        def count(name):
            return sum(each.get(name) for each in counted)
        return count('mc:loaded_bytes_total'), count('mc:saved_blocks_total') * BLOCK_BYTES


class Tcp(Shm):
    """The same over sockets."""

    transports = {'transports': 'tcp'}


class OwnLmcache(Group):
    """LMCache's server with its own memory."""

    needs = ('lmcache-0.5.6',)
    shared = True

    def beneath(self):
        self.lmcache = Lmcache(self.folder, 'lmcache', None, memory=max(0.25, self.room() / 2**30 * 1.3), chunk=BLOCK)

    def more(self):
        extra = {'lmcache.mp.host': 'tcp://127.0.0.1', 'lmcache.mp.port': self.lmcache.port}
        told = json.dumps({**CONNECTOR, 'kv_connector_extra_config': extra})
        return None, {'flags': ('--kv-transfer-config', told), 'path': (packages_behind(self.folder, LMCACHE),)}

    def processes(self):
        return [self.lmcache.process] if hasattr(self, 'lmcache') else []

    def empty(self):
        self.lmcache.forget()


class McLmcache(OwnLmcache):
    """LMCache's server over mc's pool: its own memory is where chunks are on their way."""

    def beneath(self):
        self.pool = Pool(self.folder, segment=f'{self.room() >> 20}MiB')
        two = 2 * self.load.longest // BLOCK * BLOCK_BYTES / 2**30
        self.lmcache = Lmcache(self.folder, 'lmcache', self.pool, memory=max(0.25, two * 1.3), chunk=BLOCK,
                               flags=('--l2-store-policy', 'skip_l1'))

    def processes(self):
        pool = [self.pool.process, *self.pool.nodes.values()] if hasattr(self, 'pool') else []
        return pool + super().processes()

    def empty(self):
        super().empty()
        self.pool.remove('lmcache:')


class Mooncake(Group):
    """vLLM's own connector for Mooncake's store, with that package's master and node, over tcp."""

    needs = ('mooncake',)
    shared = resets = True
    master = node = None

    def beneath(self):
        port, at = free_port(), f'127.0.0.1:{free_port()}'
        address = f'127.0.0.1:{port}'
        self.master = Process(self.folder, 'mooncake-master', [
            MOONCAKE / 'bin/mooncake_master', f'--rpc_port={port}', f'--metrics_port={free_port()}'])
        wait_for("the start of Mooncake's master", lambda: listens(port), 60)
        self.node = Process(self.folder, 'mooncake-node', [
            MOONCAKE / 'bin/mooncake_client', f'--global_segment_size={self.room() >> 20} MB', '--host=127.0.0.1',
            f'--port={at.rpartition(":")[2]}', f'--master_server_address={address}', '--metadata_server=P2PHANDSHAKE',
            '--protocol=tcp'])
        config = self.folder / 'mooncake.json'
        config.write_text(json.dumps({
            'metadata_server': 'P2PHANDSHAKE', 'master_server_address': address, 'protocol': 'tcp',
            'mode': 'standalone-store', 'global_segment_size': 0, 'local_buffer_size': '128MB'}))
        os.environ['MOONCAKE_CONFIG_PATH'] = str(config)

    def more(self):
        told = json.dumps({'kv_connector': 'MooncakeStoreConnector', 'kv_role': 'kv_both',
                           'kv_load_failure_policy': 'recompute'})
        return None, {'flags': ('--kv-transfer-config', told),
                      'path': (packages_behind(self.folder, MOONCAKE, READY_EVENT),)}

    def processes(self):
        return [process for process in (self.node, self.master) if process]


def listens(port):
    import socket
    with socket.socket() as s:
        return s.connect_ex(('127.0.0.1', port)) == 0


class OwnWorkers(Group):
    """mc's own workers, each prefilling and decoding, behind mc-conductor and over the pool."""

    turned, shared = True, True
    policy, reuse = 'rr', 'always'
    script = str(ROOT / 'scripts/loopback')

    def begin(self):
        self.at = ['--dir', str(self.folder / 'cluster'), '--bin', str(BIN)]
        kv = 60 * self.load.blocks() * BLOCK * 3 * 64 * 2  # of bf16: its weights are
        told = [self.script, 'up', '--both', '2', '--store', '1', '--engine', 'cpu', '--model', str(ENGINES / 'smollm2-135m'),
                '--block-size', str(BLOCK), '--segment', f'{self.room() >> 20}MiB', '--pool', f'{kv * 2 >> 20}MiB',
                '--wait', '120', '--policy', self.policy, '--with',
                f'prefill:--threads 1 --pool-reuse {self.reuse} --blocks {self.load.blocks()}', *self.at]
        up = subprocess.run(told, capture_output=True, text=True, check=False)
        if up.returncode:
            raise SystemExit(f'failed: the cluster did not start: {up.stderr}')
        self.url = self.say('url')
        with urllib.request.urlopen(self.url + '/v1/models', timeout=10) as answer:
            self.model = json.load(answer)['data'][0]['id']
        self.port = int(self.url.rpartition(':')[2])
        self.workers = [int(self.say('url', name).rpartition(':')[2]) for name in ('b0', 'b1')]

    def say(self, *words):
        return subprocess.run([self.script, *words, *self.at], capture_output=True, text=True, check=True).stdout.strip()

    def clean(self):
        """It is new for each arm."""

    def front(self):
        """It has one."""

    def ask(self, at, prompt):
        return stream('127.0.0.1', self.port, prompt, SAID, model=self.model)

    def counters(self):
        out = []
        for port in self.workers:
            with urllib.request.urlopen(f'http://127.0.0.1:{port}/metrics', timeout=10) as answer:
                out.append(Counters(answer.read()))
        return out

    def pool_tokens(self, counted):
        return sum(each.get('mc_engine_pool_blocks_fetched_total') for each in counted) * BLOCK

    def loaded_saved(self, counted):
        return tuple(sum(each.get(f'mc_store_client_{way}_bytes_total') for each in counted) for way in ('get', 'put'))

    def used(self):
        def of(*names):
            pids = [int((self.folder / 'cluster' / f'{name}.pid').read_text()) for name in names]
            return used(*(types.SimpleNamespace(child=types.SimpleNamespace(pid=pid)) for pid in pids))
        return {'servers': of('b0', 'b1'), 'pool': of('master', 's0'), 'conductor': of('conductor')}

    def stop(self):
        subprocess.run([self.script, 'down', *self.at], capture_output=True, check=False)


class OwnAlone(OwnWorkers):
    """The same without the pool's KV."""

    shared, reuse = False, 'never'


class OwnChosen(OwnWorkers):
    """The conductor chooses by what is cached where."""

    policy = 'kvcache'


KINDS = {'alone': Group, 'shm': Shm, 'tcp': Tcp, 'lmcache': OwnLmcache, 'lmcache-mc': McLmcache, 'mooncake': Mooncake,
         'own-alone': OwnAlone, 'own': OwnWorkers, 'own-chosen': OwnChosen}
