"""Servers of the real vLLM as users start them, and a pool: for tests/nightly and for bench.

MC_BIN and MC_ENGINES name the build and the folder that scripts/setup --engines makes.
"""

import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get('MC_BIN', ROOT / 'build/release'))
ENGINES = pathlib.Path(os.environ.get('MC_ENGINES', ROOT / 'build/engines'))
BLOCK, OUTPUT = 32, 16
TIMEOUT = 2.0  # of one call to the pool
PATIENCE = 300.0  # of this test, for what has no bound of its own


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def wait_for(what, condition, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f'failed: {what} did not happen in {seconds:.0f} s')
        time.sleep(0.05)


def prompts(server, count, chance):
    """1,000 to 3,000 tokens of our own documentation, cut anywhere."""
    text = '\n'.join(path.read_text() for path in sorted((ROOT / 'docs').glob('*.md')))
    all_of_it = server.tokens(text[:400_000])
    out = []
    for _ in range(count):
        size = chance.randrange(1000, 3000)
        begin = chance.randrange(len(all_of_it) - size)
        out.append(all_of_it[begin : begin + size])
    return out


def whole(tokens):
    """Tokens that whole blocks cover, with one left to compute."""
    return (len(tokens) - 1) // BLOCK * BLOCK


class Process:
    def __init__(self, folder, name, command, **environment):
        self.name, self.log = name, folder / f'{name}.log'
        with open(self.log, 'ab') as log:
            self.child = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder,
                                          start_new_session=True, env={**os.environ, **environment})

    def signal(self, number):
        try:
            os.killpg(self.child.pid, number)
        except ProcessLookupError:
            pass

    def kill(self):
        self.signal(signal.SIGKILL)
        self.child.wait()

    def stop(self, seconds=20):
        self.child.terminate()
        try:
            self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        self.signal(signal.SIGKILL)  # children that outlived it


class Pool:
    """A master and nodes on loopback."""

    def __init__(self, folder, nodes=1, segment='2GiB'):
        self.folder, self.segment = folder, segment
        self.master_port = free_port()
        self.master = f'127.0.0.1:{self.master_port}'
        self.nodes = {}
        self.start_master()
        try:
            for at in range(nodes):
                self.start_node(f'n{at}')
        except BaseException:
            self.stop()
            raise

    def start_master(self):
        self.process = Process(self.folder, 'master', [BIN / 'mc-master', '--listen', self.master, '--http', '127.0.0.1:0'])
        wait_for("the master's start", lambda: self.stat() is not None, 30)

    def start_node(self, name):
        command = [BIN / 'mc-store', 'serve', '--name', name, '--master', self.master, '--listen', '127.0.0.1:0',
                   '--http', '127.0.0.1:0', '--size', self.segment]
        self.nodes[name] = Process(self.folder, name, command)
        wait_for(f'the start of {name}', lambda: name in (self.stat() or ''), 30)

    def stat(self):
        done = subprocess.run([BIN / 'mc-store', 'stat', '--master', self.master, '--output', 'json'],
                              capture_output=True, text=True, timeout=30)
        return done.stdout if done.returncode == 0 else None

    def objects(self, prefix):
        """How many keys begin so."""
        done = subprocess.run([BIN / 'mc-store', 'ls', '--master', self.master, prefix], capture_output=True, timeout=30)
        return len(done.stdout.splitlines())

    def remove(self, prefix):
        done = subprocess.run([BIN / 'mc-store', 'rm', '--force', '--master', self.master, '--prefix', prefix],
                              capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise SystemExit(f'failed: mc-store rm {prefix}: {done.stderr}')

    def stop(self):
        for process in [*self.nodes.values(), self.process]:
            process.signal(signal.SIGCONT)
            process.kill()


class Server:
    """`vllm serve`. `pool` None: without mc. `transfer` changes what --kv-transfer-config says.
    `environment`: variables, beside ours."""

    def __init__(self, folder, name, version, pool, *, kv='1G', longest=4096, flags=(), path=(), role='kv_both',
                 transfer=lambda said: said, threads=os.environ.get('OMP_NUM_THREADS', '1'), wait=True, port=None,
                 options=(), environment=(), **extra):
        self.name, self.port = name, port or free_port()
        model = ENGINES / 'smollm2-135m'
        command = ['nice', '-n', '5', ENGINES / f'vllm-{version}/bin/vllm', 'serve', model, '--served-model-name', 'm',
                   '--host', '127.0.0.1', '--port', str(self.port), '--dtype', 'float32', '--enforce-eager',
                   '--block-size', str(BLOCK), '--max-model-len', str(longest), '--kv-cache-memory-bytes', str(kv),
                   '--enable-prompt-tokens-details', '--prefix-caching-hash-algo', 'sha256_cbor', *flags]
        said = {}
        if pool is not None:
            said = {'kv_connector': 'McConnector', 'kv_connector_module_path': 'mc.vllm', 'kv_role': role,
                    'kv_load_failure_policy': 'recompute',
                    'kv_connector_extra_config': {'master': pool.master, 'name': name, 'timeout': f'{TIMEOUT}s',
                                                  'lookup-patience': '1s', **extra, **dict(options)}}
        said = transfer(said)
        if said:
            command += ['--kv-transfer-config', json.dumps(said)]
        self.begun = time.monotonic()
        self.process = Process(
            folder, name, command, MC_LIBRARY=str(BIN.resolve() / 'libmc.so'),
            PYTHONPATH=os.pathsep.join(map(str, (ROOT / 'lib/python', *path))),
            VLLM_CPU_OMP_THREADS_BIND='nobind', OMP_NUM_THREADS=threads, HF_HUB_OFFLINE='1', VLLM_NO_USAGE_STATS='1',
            VLLM_SERVER_DEV_MODE='1', **dict(environment))
        if wait:
            self.wait()

    def wait(self):
        """Until it answers."""
        wait_for(f'the start of {self.name}, see {self.process.log}', self.ready)
        print(f'# {self.name} is ready after {time.monotonic() - self.begun:.0f} s', flush=True)

    def ready(self):
        if self.process.child.poll() is not None:
            log = self.process.log.read_text(errors='replace')
            begin = log.find('Traceback')  # what follows is said by those who waited for it
            raise SystemExit(f'failed: {self.name} ended:\n{log[begin:begin + 4000] if begin >= 0 else log[-3000:]}')
        try:
            return self.ask('GET', '/health')[0] == 200
        except OSError:
            return False

    def ask(self, method, path, body=None):
        http_ = http.client.HTTPConnection('127.0.0.1', self.port, timeout=PATIENCE)
        http_.request(method, path, body=None if body is None else json.dumps(body),
                      headers={'content-type': 'application/json'})
        reply = http_.getresponse()
        out = reply.status, reply.read()
        http_.close()
        return out

    def complete(self, tokens, **more):
        """The answer, and the seconds it took."""
        begun = time.monotonic()
        body = {'model': more.pop('model', 'm'), 'prompt': tokens, 'max_tokens': OUTPUT, 'temperature': 0, 'logprobs': 2, 'seed': 1,
                'ignore_eos': True, **more}
        status, text = self.ask('POST', '/v1/completions', body)
        if status != 200:
            raise SystemExit(f'failed: {self.name} answers {status}: {text[:300]!r}')
        reply = json.loads(text)
        choice = reply['choices'][0]
        return Answer(choice['text'], choice['logprobs']['tokens'], choice['logprobs']['token_logprobs'],
                      choice['logprobs']['top_logprobs'],
                      (reply['usage'].get('prompt_tokens_details') or {}).get('cached_tokens', 0),
                      time.monotonic() - begun)

    def tokens(self, text):
        return json.loads(self.ask('POST', '/tokenize', {'model': 'm', 'prompt': text})[1])['tokens']

    def forget(self, everywhere=False):
        """Its own prefix cache, not the pool; everywhere: also what it believes to be in the pool."""
        status, _ = self.ask('POST', f'/reset_prefix_cache?reset_external={str(everywhere).lower()}')
        assert status == 200, status

    def metric(self, name, **labels):
        total = 0.0
        for line in self.ask('GET', '/metrics')[1].decode().splitlines():
            if line.startswith(name) and line[len(name)] in '{ ':
                if all(f'{key}="{value}"' in line for key, value in labels.items()):
                    total += float(line.rsplit(' ', 1)[1])
        return total

    def saved(self):
        return (self.metric('mc:saved_blocks_total') + self.metric('mc:existed_blocks_total')
                + self.metric('mc:dropped_blocks_total'))

    def alive(self):
        return self.process.child.poll() is None


class Front:
    """mc-conductor before servers: `engines` as its file has them."""

    model = 'smollm2-135m'  # it names the model by its folder

    def __init__(self, folder, engines, *flags):
        self.port, self.count = free_port(), len(engines)
        listed = folder / 'engines.json'
        listed.write_text(json.dumps(engines))
        self.process = Process(folder, 'conductor', [
            BIN / 'mc-conductor', '--listen', '127.0.0.1:0', '--http', f'127.0.0.1:{self.port}', '--engine', 'dummy',
            '--model', ENGINES / self.model, '--foreign-engines', listed, '--retries', '3', *flags])
        wait_for("the conductor's start", self.ready, 60)

    def ready(self):
        try:
            with urllib.request.urlopen(f'http://127.0.0.1:{self.port}/cluster', timeout=5) as reply:
                nodes = json.load(reply)['nodes']
            return len(nodes) == self.count and all(node['up'] for node in nodes)
        except (OSError, ValueError, KeyError):
            return False


class Answer:
    def __init__(self, text, tokens, logprobs, top, cached, seconds):
        self.text, self.tokens, self.logprobs, self.top = text, tokens, logprobs, top
        self.cached, self.seconds = cached, seconds

    def same(self, other):
        return self.tokens == other.tokens and self.logprobs == other.logprobs

    def decided(self):
        """Whether no two best logprobs were so close that the order of a sum decides."""
        return all(len(top) < 2 or abs(sorted(top.values())[-1] - sorted(top.values())[-2]) > 1e-3
                   for top in self.top)
