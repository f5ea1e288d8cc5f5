"""LMCache's multi-process server over mc's pool, and two real vLLM servers over it.

    python3 tests/nightly/lmcache_servers.py [--keep]

Wants build/engines with vLLM and LMCache (scripts/setup --engines) and a build (MC_BIN). Prints a line for each
thing that was measured; ends with 1 if something is wrong, 77 if there is nothing to run it with.
"""

import http.client
import json
import pathlib
import shutil
import signal
import sys
import tempfile
import time

import vllm_servers as vllm

VERSION, LMCACHE = '0.32.0', vllm.ENGINES / 'lmcache-0.5.6'
CHUNK, TIMEOUT = 256, 2.0
CONNECTOR = {'kv_connector': 'LMCacheMPConnector', 'kv_role': 'kv_both', 'kv_load_failure_policy': 'recompute',
             'kv_connector_module_path': 'lmcache.integration.vllm.lmcache_mp_connector'}


class Lmcache:
    """`lmcache server`, with McClient as its second level if there is a pool. `memory`: of its own, GiB."""

    def __init__(self, folder, name, pool, *, memory=1, chunk=CHUNK, flags=()):
        self.port, self.http = vllm.free_port(), vllm.free_port()
        adapter = ()
        if pool is not None:
            adapter = ('--l2-adapter', json.dumps(
                {'type': 'native_plugin', 'module_path': 'mc.lmcache', 'class_name': 'McClient',
                 'adapter_params': {'master': pool.master, 'namespace': 'nightly', 'timeout': f'{TIMEOUT}s'}}))
        self.process = vllm.Process(
            folder, name,
            [LMCACHE / 'bin/lmcache', 'server', '--host', '127.0.0.1', '--port', str(self.port),
             '--http-port', str(self.http), '--prometheus-port', str(vllm.free_port()), '--l1-size-gb', f'{memory:.2f}', '--eviction-policy', 'LRU',
             '--chunk-size', str(chunk), '--supported-transfer-mode', 'auto', *adapter, *flags],
            MC_LIBRARY=str(vllm.BIN / 'libmc.so'), PYTHONPATH=str(vllm.ROOT / 'lib/python'), LMCACHE_LOG_LEVEL='INFO',
            LMCACHE_DISABLE_BANNER='1')
        try:
            vllm.wait_for(f"LMCache's start, see {self.process.log}", self.ready)
        except BaseException:
            self.process.kill()
            raise

    def ready(self):
        if self.process.child.poll() is not None:
            raise SystemExit(f'failed: LMCache ended:\n{self.process.log.read_text(errors="replace")[-3000:]}')
        try:
            return self.ask('GET', '/metrics') is not None
        except OSError:
            return False

    def ask(self, method, path, body=None):
        link = http.client.HTTPConnection('127.0.0.1', self.http, timeout=60)
        link.request(method, path, body=None if body is None else json.dumps(body),
                     headers={'content-type': 'application/json'})
        reply = link.getresponse()
        text = reply.read().decode()
        link.close()
        return text if reply.status == 200 else None

    def metric(self, name):
        lines = self.ask('GET', '/metrics').splitlines()
        return sum(float(line.rsplit(' ', 1)[1]) for line in lines if line.startswith(name) and line[len(name)] in '{ ')

    def forget(self):
        """Its own memory, not the pool."""
        assert self.ask('POST', '/cache/clear', {'tier': 'l1'}) is not None


def packages_behind(folder, environment, more=''):
    """A folder for PYTHONPATH with which a program finds what is installed in another environment behind
    its own packages, so that both have what they were tried with."""
    behind = folder / 'behind'
    behind.mkdir(exist_ok=True)
    packages = next((environment / 'lib').glob('python3*')) / 'site-packages'
    (behind / 'sitecustomize.py').write_text(f'import sys\nsys.path.append({str(packages)!r})\n{more}')
    return behind


def engine(test, name, lmcache):
    behind = packages_behind(test.folder, LMCACHE)
    extra = {'lmcache.mp.host': 'tcp://127.0.0.1', 'lmcache.mp.port': lmcache.port}
    flags = ('--kv-transfer-config', json.dumps({**CONNECTOR, 'kv_connector_extra_config': extra}))
    out = vllm.Server(test.folder, name, VERSION, None, flags=flags, path=(behind,), wait=False)
    test.running.append(out.process)
    out.wait()
    return out


class Test:
    def __init__(self, folder):
        self.folder, self.wrong, self.running = folder, 0, []

    def check(self, good, what):
        print(f"{'ok   ' if good else 'WRONG'} {what}", flush=True)
        self.wrong += not good

    def end(self):
        for process in reversed(self.running):
            process.stop()


def chunks(tokens):
    """Tokens that whole chunks cover, with one left to compute."""
    return (len(tokens) - 1) // CHUNK * CHUNK


def servers(test):
    """A stores and is killed with LMCache; B and a new LMCache load; then trouble."""
    pool = vllm.Pool(test.folder)
    test.running.append(pool)
    first = Lmcache(test.folder, 'lmcache-a', pool)
    test.running.append(first.process)
    a = engine(test, 'a', first)
    text = '\n'.join(path.read_text() for path in sorted((vllm.ROOT / 'docs').glob('*.md')))
    words = a.tokens(text[:100_000])
    prompts = [words[at:at + size] for at, size in ((0, 1100), (3000, 900), (6000, 1400))]
    cold = [a.complete(prompt) for prompt in prompts]
    wanted = sum(map(chunks, prompts))
    vllm.wait_for('the chunks are stored', lambda: first.metric('lmcache_mp_l2_store_completed_objects_chunks_total')
                  >= wanted / CHUNK, 60)
    a.process.kill()
    first.process.kill()
    second = Lmcache(test.folder, 'lmcache-b', pool)
    test.running.append(second.process)
    b = engine(test, 'b', second)

    def same(answer, number):
        return answer.tokens == cold[number].tokens or not (answer.decided() and cold[number].decided())

    warm = [b.complete(prompt) for prompt in prompts]
    loaded = sum(each.cached for each in warm)
    test.check(loaded == wanted, f'A and its LMCache are killed; B loads {loaded} of {sum(map(len, prompts))} tokens, '
                                 f'all {wanted} that whole chunks cover')
    right = sum(same(each, n) for n, each in enumerate(warm))
    test.check(right == len(prompts), f'{right} of {len(prompts)} have the text that A computed')
    test.check(second.metric('lmcache_mp_lookup_hit_l2_tokens_total') >= wanted,
               "LMCache's metrics say that they came of the pool")
    seconds = [sum(each.seconds for each in answers) / len(prompts) for answers in (cold, warm)]
    print(f'     seconds an answer: computed {seconds[0]:.1f}, loaded {seconds[1]:.1f}', flush=True)

    def again(what, during, after):
        b.forget()
        second.forget()
        during()
        begun = time.monotonic()
        answer = b.complete(prompts[0])
        took = time.monotonic() - begun
        after()
        test.check(same(answer, 0), f'{what}: right, {answer.cached} tokens loaded, {took:.1f} s')
        test.check(took < 3 * max(each.seconds for each in cold) + 4 * TIMEOUT, f'{what}: in time')
        return answer

    node = pool.nodes['n0']
    nothing = lambda: None  # noqa: E731
    stopped = again('the master is stopped', lambda: pool.process.signal(signal.SIGSTOP),
                    lambda: pool.process.signal(signal.SIGCONT))
    test.check(stopped.cached == 0, 'the master is stopped: a miss')
    vllm.wait_for('the pool answers again', lambda: again('after that', nothing, nothing).cached == chunks(prompts[0]))
    again('the node is stopped', lambda: node.signal(signal.SIGSTOP), lambda: node.signal(signal.SIGCONT))
    test.check(again('the node is killed', node.kill, nothing).cached == 0, 'the node is killed: a miss')
    again('the master is killed', pool.process.kill, nothing)
    pool.start_master()
    pool.start_node('n0')
    done = 'lmcache_mp_l2_store_completed_objects_chunks_total'

    def stored_again():
        before, end = second.metric(done), time.monotonic() + 20
        if again('after both were started', nothing, nothing).cached == chunks(prompts[0]):
            return True
        while second.metric(done) < before + chunks(prompts[0]) / CHUNK and time.monotonic() < end:
            time.sleep(0.1)  # or its memory would be emptied before it is stored
        return False
    vllm.wait_for('what is computed is stored again', stored_again)


def main():
    if not (LMCACHE / 'ready').exists() or not (vllm.ENGINES / f'vllm-{VERSION}/ready').exists():
        print(f'skipped: no vLLM {VERSION} and LMCache in {vllm.ENGINES}: scripts/setup --engines makes them')
        return 77
    folder = pathlib.Path(tempfile.mkdtemp(prefix='mc-lmcache.'))
    print(f'# vLLM {VERSION}, LMCache 0.5.6; logs in {folder}', flush=True)
    test = Test(folder)
    try:
        servers(test)
    finally:
        test.end()
    if not test.wrong and '--keep' not in sys.argv:
        shutil.rmtree(folder)
    print(f'{test.wrong} wrong')
    return 1 if test.wrong else 0


if __name__ == '__main__':
    sys.exit(main())
