"""McConnector in the real vLLM: servers as users start them, a real pool, and trouble.

    python3 tests/nightly/vllm.py [--version 0.32.0] [--keep] [CASE...]

Wants build/engines (scripts/setup --engines) and a build (MC_BIN). Prints a line for each thing that
was measured; ends with 1 if something is wrong, 77 if there is nothing to run it with.
"""

import argparse
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from vllm_client import stream
from vllm_front import case_front
from vllm_nixl import case_nixl
from vllm_others import case_others
from vllm_servers import (BIN, BLOCK, ENGINES, OUTPUT, TIMEOUT, Front, Pool, Server, prompts,
                          wait_for, whole)


class Test:
    def __init__(self, version, folder, prompts):
        self.version, self.folder, self.prompts, self.wrong = version, folder, prompts, 0
        self.running = []

    def check(self, good, what):
        print(f"{'ok   ' if good else 'WRONG'} {what}", flush=True)
        self.wrong += not good

    def server(self, name, pool, **more):
        out = Server(self.folder, name, self.version, pool, **more)
        self.running.append(out.process)
        return out

    def pool(self, **more):
        out = Pool(self.folder, **more)
        self.running.append(out)
        return out

    def end(self):
        for process in reversed(self.running):
            process.stop()


def case_share(test, chance):
    """A server's blocks outlive it; the next one answers the same from them. Then the same with trouble."""
    plain = test.server('plain', None)
    asked = prompts(plain, test.prompts, chance)
    cold, want = zip(*((plain.complete(tokens), plain.complete(tokens)) for tokens in asked))
    plain.process.stop()
    test.check(all(a.cached == whole(t) for a, t in zip(want, asked)), 'the plain server answers from its own cache')
    clear = sum(a.decided() for a in cold)
    test.check(all(a.tokens == b.tokens for a, b in zip(cold, want) if a.decided()),
               f'without mc, cold and cached answers agree ({clear} of {len(asked)} decided)')

    pool = test.pool(nodes=2, segment=f'{1 + test.prompts // 8}GiB')
    first = test.server('a', pool)
    told = [first.complete(tokens) for tokens in asked]
    test.check(all(a.same(b) for a, b in zip(told, cold)), 'server A computes what the plain server computed')
    full = sum((len(t) + OUTPUT - 1) // BLOCK for t in asked)
    wait_for('saving', lambda: first.saved() >= full - len(asked), 30)
    print(f"# A saved {first.metric('mc:saved_blocks_total'):.0f} blocks, "
          f"{full} are full; p50 {quantile(first, 'mc:save_seconds'):.4f} s a save")
    first.process.kill()

    second = test.server('b', pool)
    before = second.metric('vllm:external_prefix_cache_hits_total')
    got = [second.complete(tokens) for tokens in asked]
    hits = second.metric('vllm:external_prefix_cache_hits_total') - before
    covered = sum(whole(t) for t in asked)
    total = sum(len(t) for t in asked)
    test.check(hits == covered, f'after A was killed, B took {hits:.0f} of {total} tokens from the pool; '
                                f'whole blocks cover {covered}')
    test.check(all(a.cached == whole(t) for a, t in zip(got, asked)), 'each answer says so (cached_tokens)')
    test.check(all(a.same(b) for a, b in zip(got, want)),
               "B's answers are those of a server's own cache, token and logprob")
    print(f'# seconds an answer of {OUTPUT} tokens: computed {mean(cold):.2f}, own cache {mean(want):.2f}, '
          f'with mc computed and saved {mean(told):.2f}, from the pool {mean(got):.2f}')
    print(f"# loads: p50 {quantile(second, 'mc:load_seconds'):.4f} s, lookups: p50 "
          f"{quantile(second, 'mc:lookup_seconds'):.5f} s, {second.metric('mc:loaded_bytes_total') / 1e6:.0f} MB")

    salts(test, second, asked[0])
    trouble(test, second, pool, asked[:4], want[:4], chance)
    test.check(b'Traceback' not in second.process.log.read_bytes(), "B's log has no traceback")
    second.process.stop()


def salts(test, server, tokens):
    server.forget()
    for salt in ('x', 'y'):
        answer = server.complete(tokens, cache_salt=salt)
        test.check(answer.cached == 0, f'cache_salt {salt} finds nothing of others')
    server.forget()
    answer = server.complete(tokens, cache_salt='x')
    test.check(answer.cached == whole(tokens), 'the same cache_salt finds its own')


def trouble(test, server, pool, asked, want, chance):
    """Kills and stops while blocks are loaded. Each answer is right, and none waits longer than it may."""
    slowest_compute = 0.0
    right, rounds, slow = 0, 0, 0.0

    def fill():
        """Values that a kill lost are saved again by computing them."""
        nonlocal slowest_compute
        for tokens in some:
            server.forget()
            answer = server.complete(tokens)
            slowest_compute = max(slowest_compute, answer.seconds)

    some = [asked[at] for at in sorted(range(len(asked)), key=lambda at: len(asked[at]))[:2]]
    wanted = {id(t): w for t, w in zip(asked, want)}

    def round_of(tokens, fault, mend):
        nonlocal right, rounds, slow
        server.forget()
        timer = threading.Timer(chance.random() * 0.08, fault)
        timer.start()
        answer = server.complete(tokens)
        timer.join()
        mend()
        rounds += 1
        right += answer.tokens == wanted[id(tokens)].tokens
        slow = max(slow, answer.seconds)

    def failed():
        return server.metric('mc:failed_blocks_total')

    fill()
    before = failed()
    for name in ['n0', 'n1'] * 3:
        def mend(name=name):
            pool.nodes[name].child.wait()
            pool.start_node(name)
        round_of(some[0], lambda name=name: pool.nodes[name].signal(signal.SIGKILL), mend)
        fill()
    test.check(right == rounds, f'kill -9 of a node under a load: {right} of {rounds} answers right, '
                                f'{failed() - before:.0f} blocks failed, slowest {slow:.1f} s')
    bound = 2 * slowest_compute + 3 * TIMEOUT + 2
    test.check(slow < bound, f'none took longer than computing and the timeouts ({bound:.1f} s)')
    test.check(failed() > before, 'some of these came in the middle of a load')

    for what, victims in (('a node', ['n0', 'n1']), ('the master', ['master'])):
        right, rounds, slow = 0, 0, 0.0
        for name in victims * (2 if what == 'a node' else 4):
            process = pool.process if name == 'master' else pool.nodes[name]
            round_of(some[rounds % 2], lambda p=process: p.signal(signal.SIGSTOP),
                     lambda p=process: p.signal(signal.SIGCONT))
            time.sleep(2)
            fill()
        test.check(right == rounds, f'{what} stopped under a load: {right} of {rounds} answers right, '
                                    f'slowest {slow:.1f} s')
        test.check(slow < bound, f'none took longer than computing and the timeouts ({bound:.1f} s)')

    right, rounds, slow = 0, 0, 0.0
    for _ in range(2):
        def mend():
            pool.process.child.wait()
            pool.start_master()
        round_of(some[0], lambda: pool.process.signal(signal.SIGKILL), mend)
        time.sleep(3)
    test.check(right == rounds, f'kill -9 of the master under a load: {right} of {rounds} answers right, '
                                f'slowest {slow:.1f} s')
    test.check(slow < bound, f'none took longer than computing and the timeouts ({bound:.1f} s)')
    hits = server.metric('vllm:external_prefix_cache_hits_total')
    for _ in range(5):
        fill()
        if server.metric('vllm:external_prefix_cache_hits_total') > hits:
            break
        time.sleep(2)
    else:
        test.check(False, 'afterwards no block is loaded any more')
    test.check(server.alive(), 'the server lives')


def case_pair(test, chance):
    """Two servers at once, each loading what the other has just saved."""
    pool = test.pool(nodes=1, segment='2GiB')
    both = [test.server('left', pool), test.server('right', pool)]
    asked = prompts(both[0], 3, chance)
    for at, tokens in enumerate(asked):
        one, other = both[at % 2], both[1 - at % 2]
        saved = one.saved()
        mine = one.complete(tokens)
        wait_for('saving', lambda one=one, saved=saved, tokens=tokens: one.saved() - saved >= len(tokens) // BLOCK, 30)
        other_ = other.complete(tokens)
        test.check(other_.cached == whole(tokens), f'{other.name} took {other_.cached} of {len(tokens)} tokens that '
                                                   f'{one.name} had computed')
        one.forget()
        again = one.complete(tokens)
        test.check(again.same(other_), 'both answer the same from the pool, token and logprob')
        test.check(mine.tokens == other_.tokens or not mine.decided(), 'and as computed')
    answers = {}

    def use(server, order):
        answers[server.name] = [server.complete(tokens) for tokens in order]

    for server in both:
        server.forget()
    threads = [threading.Thread(target=use, args=(both[0], asked)), threading.Thread(target=use, args=(both[1], asked[::-1]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same = all(a.tokens == b.tokens for a, b in zip(answers['left'], answers['right'][::-1]))
    test.check(same, 'both at once: equal answers')
    for server in both:
        server.process.stop()


def case_small(test, chance):
    """A pool that holds less than the requests need: blocks are evicted while others load."""
    pool = test.pool(nodes=1, segment='160MiB')
    server = test.server('small', pool)
    asked = prompts(server, 4, chance)
    cold = [server.complete(tokens) for tokens in asked]
    right = 0
    for _ in range(2):
        for tokens, want in zip(asked, cold):
            for _ in range(2):  # computed, as the others took its place; then loaded
                server.forget()
                answer = server.complete(tokens)
                right += answer.tokens == want.tokens or not want.decided()
    loaded = server.metric('mc:loaded_blocks_total')
    test.check(right == 16 and loaded,
               f'a pool of 160 MiB for {sum(map(len, asked)) * 46080 // 1000000} MB of KV: {right} of 16 answers right, '
               f'{loaded:.0f} blocks loaded, {server.metric("mc:failed_blocks_total"):.0f} failed, '
               f'{server.metric("mc:dropped_blocks_total"):.0f} not saved')
    kept = pool.objects('vllm:')
    test.check(kept < server.metric('mc:saved_blocks_total'), f'{kept} blocks are left in the pool, the others were evicted')
    test.check(server.alive(), 'the server lives')
    server.process.stop()


def case_tcp(test, chance):
    """Blocks over sockets, where a node that stops does not answer: loads end in their timeout."""
    pool = test.pool(nodes=1, segment='1GiB')
    server = test.server('sockets', pool, transports='tcp')
    tokens = prompts(server, 1, chance)[0][:1500]
    cold = server.complete(tokens)
    wait_for('saving', lambda: server.saved() >= len(tokens) // BLOCK, 30)
    server.forget()
    want = server.complete(tokens)
    test.check(want.cached == whole(tokens), 'blocks are loaded over tcp')
    test.check(want.tokens == cold.tokens or not cold.decided(), 'and the answer is as computed')
    right, slow, node = 0, 0.0, pool.nodes['n0']
    for at in range(4):
        server.forget()
        if at == 0:  # before the request; then in the middle
            node.signal(signal.SIGSTOP)
        timer = threading.Timer(chance.random() * 0.08, lambda: node.signal(signal.SIGSTOP))
        timer.start()
        answer = server.complete(tokens)
        timer.join()
        node.signal(signal.SIGCONT)
        right += answer.tokens == want.tokens
        slow = max(slow, answer.seconds)
        time.sleep(2)
    bound = 2 * cold.seconds + 3 * TIMEOUT + 2
    test.check(right == 4, f'a node stopped under a load: {right} of 4 answers right, slowest {slow:.1f} s, '
                           f'{server.metric("mc:failed_blocks_total"):.0f} blocks failed')
    test.check(slow < bound, f'none took longer than computing and the timeouts ({bound:.1f} s)')
    test.check(server.alive(), 'the server lives')
    server.process.stop()


def case_crowd(test, chance):
    """Many at once on a server that cannot hold them all: requests are preempted while blocks move."""
    pool = test.pool(nodes=1, segment='1GiB')
    # 135 blocks: the prompts of four take 128 of them, and their answers 12 more.
    server = test.server('crowd', pool, kv='190M')
    asked = [tokens[:1000] + tokens[:20] for tokens in prompts(server, 4, chance)]
    cold = [server.complete(tokens, max_tokens=96) for tokens in asked]
    right = decided = 0
    for _ in range(2):
        server.forget()
        got = [None] * len(asked)

        def use(at, got=got):
            got[at] = server.complete(asked[at], max_tokens=96)

        threads = [threading.Thread(target=use, args=(at,)) for at in range(len(asked))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for answer, want in zip(got, cold):
            decided += want.decided()
            right += want.decided() and answer.tokens == want.tokens
    test.check(right == decided, f'{right} of {decided} decided answers right, '
               f'{server.metric("vllm:num_preemptions_total"):.0f} preemptions, '
               f'{server.metric("mc:loaded_blocks_total"):.0f} blocks loaded')
    test.check(server.alive(), 'the server lives')
    server.process.stop()


ADAPTER = """
import json, os, sys, torch
from safetensors.torch import save_file
folder, seed = sys.argv[1], int(sys.argv[2])
os.makedirs(folder)
torch.manual_seed(seed)
weights = {}
for layer in range(30):
    name = f'base_model.model.model.layers.{layer}.self_attn.v_proj.lora_'
    weights[name + 'A.weight'] = torch.randn(8, 576) * 0.05
    weights[name + 'B.weight'] = torch.randn(192, 8) * 0.05
save_file(weights, f'{folder}/adapter_model.safetensors')
with open(f'{folder}/adapter_config.json', 'w') as out:
    json.dump({'peft_type': 'LORA', 'task_type': 'CAUSAL_LM', 'r': 8, 'lora_alpha': 16, 'lora_dropout': 0.0,
               'target_modules': ['v_proj'], 'bias': 'none', 'base_model_name_or_path': 'm'}, out)
"""


def case_lora(test, chance):
    """Adapters: none finds blocks of another or of the model alone, and each finds its own."""
    for name, seed in (('x', 1), ('y', 2)):
        subprocess.run([ENGINES / f'vllm-{test.version}/bin/python', '-c', ADAPTER, test.folder / name, str(seed)],
                       check=True, capture_output=True)
    pool = test.pool(nodes=1, segment='1GiB')
    flags = ['--enable-lora', '--max-lora-rank', '8', '--max-loras', '2', '--lora-modules',
             *(f'{name}={test.folder / name}' for name in ('x', 'y'))]
    server = test.server('adapters', pool, flags=flags)
    tokens = prompts(server, 1, chance)[0][:1000]
    first = {}
    for name in ('m', 'x', 'y'):
        first[name] = server.complete(tokens, model=name)
        test.check(first[name].cached == 0, f'{name} finds nothing of others')
    test.check(len({tuple(answer.logprobs) for answer in first.values()}) == 3, 'the three compute differently')
    wait_for('saving', lambda: server.saved() >= 3 * (len(tokens) // BLOCK), 30)
    for name, want in first.items():
        server.forget()
        answer = server.complete(tokens, model=name)
        test.check(answer.cached == whole(tokens) and (answer.tokens == want.tokens or not want.decided()),
                   f'{name} takes {answer.cached} of {len(tokens)} tokens of its own, and answers the same')
    server.process.stop()


def case_multi(test, chance):
    """MultiConnector: beside vLLM's own example connector, which keeps files."""
    pool = test.pool(nodes=1, segment='1GiB')
    files = test.folder / 'files'
    files.mkdir()

    def both(said):
        example = {'kv_connector': 'ExampleConnector', 'kv_role': 'kv_both',
                   'kv_connector_extra_config': {'shared_storage_path': str(files)}}
        return {'kv_connector': 'MultiConnector', 'kv_role': 'kv_both', 'kv_load_failure_policy': 'recompute',
                'kv_connector_extra_config': {'connectors': [said, example]}}

    server = test.server('multi', pool, transfer=both, flags=['--disable-hybrid-kv-cache-manager'])
    asked = [tokens[:1000] for tokens in prompts(server, 2, chance)]
    cold = [server.complete(tokens) for tokens in asked]
    full = sum((len(t) + OUTPUT - 1) // BLOCK for t in asked)
    wait_for('saving', lambda: server.saved() >= full - len(asked), 30)
    test.check(any(files.rglob('*.safetensors')), 'both children save')
    for what in ('mc', 'the example'):
        loaded = server.metric('mc:loaded_blocks_total')
        hits = server.metric('vllm:external_prefix_cache_hits_total')
        server.forget()
        got = [server.complete(tokens) for tokens in asked]
        took = server.metric('vllm:external_prefix_cache_hits_total') - hits
        mine = (server.metric('mc:loaded_blocks_total') - loaded) * BLOCK
        right = sum(a.tokens == b.tokens or not b.decided() for a, b in zip(got, cold))
        wanted = took if what == 'mc' else 0
        test.check(right == len(asked) and took and mine == wanted,
                   f'{what} loads {took:.0f} of {sum(map(len, asked))} tokens, mc {mine:.0f} of them: '
                   f'{right} of {len(asked)} right')
        server.forget(everywhere=True)
        pool.remove('vllm:')
    test.check(server.alive(), 'the server lives')
    server.process.stop()


def case_halves(test, chance):
    """A prompt is computed on one server and answered by another, with mc-conductor before them."""
    pool = test.pool(nodes=1, segment='1GiB')
    servers = {'prefill': test.server('first', pool, kv='300M', role='kv_producer', wait=False),
               'decode': test.server('second', pool, kv='300M', role='kv_consumer', wait=False,
                                    options={'wait': '5s'})}
    for server in servers.values():
        server.wait()
    front = Front(test.folder, [{'instance_id': server.name, 'url': f'http://127.0.0.1:{server.port}', 'modelname': 'm',
                                 'role': role, 'block_size': BLOCK} for role, server in servers.items()])
    test.running.append(front.process)
    first, second = servers.values()
    asked = prompts(first, 4, chance)
    replies = [stream('127.0.0.1', front.port, tokens, OUTPUT, model=front.model) for tokens in asked]
    covered = [whole(tokens) for tokens in asked]
    computed = first.metric('vllm:prompt_tokens_total')
    test.check(computed == sum(map(len, asked)) and first.metric('vllm:generation_tokens_total') == len(asked),
               f'the first computed {computed:.0f} tokens of prompts, and said one token each')
    # 0.32's cached_tokens are those of the first half, which had none; 0.29's are the second's.
    cached = covered if test.version.startswith('0.29') else [0] * len(asked)
    hits = second.metric('vllm:external_prefix_cache_hits_total')
    test.check(hits == sum(covered) and [reply.cached for reply in replies] == cached,
               f'the second took {hits:.0f} of {sum(map(len, asked))} from the pool; whole blocks cover {sum(covered)}')
    second.forget(everywhere=True)
    pool.remove('vllm:')
    alone = [second.complete(tokens, return_tokens_as_token_ids=True) for tokens in asked]
    right = sum(a.tokens == [f'token_id:{t}' for t in b.tokens] or not a.decided() for a, b in zip(alone, replies))
    test.check(all(a.cached == 0 for a in alone) and right == len(asked),
               f'{right} of {len(asked)} answers are those that the second gives alone')
    for server in servers.values():
        test.check(server.alive(), f'{server.name} lives')
    front.process.stop()
    for server in servers.values():
        server.process.stop()


def case_soon(test, chance):
    """What one server has computed the other finds within a second."""
    pool = test.pool(nodes=1, segment='1GiB')
    one = test.server('writes', pool, kv='300M', wait=False)
    other = test.server('reads', pool, kv='300M', wait=False, save='off')
    for server in (one, other):
        server.wait()
    asked, slowest, keys, found = prompts(one, 4, chance), 0.0, 0, True
    for tokens in asked:
        one.complete(tokens, max_tokens=1)
        told, keys = time.monotonic(), keys + len(tokens) // BLOCK
        wait_for('saving', lambda keys=keys: pool.objects('vllm:') >= keys, 30)
        slowest = max(slowest, time.monotonic() - told)
        found &= other.complete(tokens, max_tokens=1).cached == whole(tokens)
    test.check(found and slowest < 1, f'all blocks are in the pool at most {slowest:.2f} s after the answer, and the '
                                      f'other finds them at its first question')
    for server in (one, other):
        server.process.stop()


def case_ranks(test, chance):
    """Tensor parallelism: three processes, each with its part of a block under its own key."""
    pool = test.pool(nodes=1, segment='1GiB')
    flags = ['--tensor-parallel-size', '3', '--distributed-executor-backend', 'mp']
    first = test.server('ranks', pool, kv='300M', flags=flags)
    asked = [tokens[:1000] for tokens in prompts(first, 2, chance)]
    cold = [first.complete(tokens) for tokens in asked]
    full = sum((len(t) + OUTPUT - 1) // BLOCK for t in asked)
    wait_for('saving', lambda: first.saved() >= 3 * (full - len(asked)), 60)
    first.process.kill()
    second = test.server('again', pool, kv='300M', flags=flags)
    got = [second.complete(tokens) for tokens in asked]
    right = sum(a.tokens == b.tokens or not b.decided() for a, b in zip(got, cold))
    test.check(right == len(asked) and all(a.cached == whole(t) for a, t in zip(got, asked)),
               f'after a kill -9 another takes {sum(a.cached for a in got)} of {sum(map(len, asked))} tokens: '
               f'{right} of {len(asked)} right')
    second.process.stop()
    alone = test.server('single', pool)
    answer = alone.complete(asked[0])
    test.check(answer.cached == 0, 'a server of one process finds nothing of them')
    test.check(answer.tokens == cold[0].tokens or not answer.decided(), 'and answers the same')
    alone.process.stop()


def mean(answers):
    return sum(a.seconds for a in answers) / len(answers)


def quantile(server, name):
    """The bucket's upper bound that half of the observations are below."""
    rows = []
    for line in server.ask('GET', '/metrics')[1].decode().splitlines():
        if line.startswith(name + '_bucket'):
            rows.append((float(line.split('le="')[1].split('"')[0]), float(line.rsplit(' ', 1)[1])))
    half = rows[-1][1] / 2 if rows else 0
    return next((bound for bound, count in rows if half and count >= half), float('nan'))


CASES = {'share': case_share, 'pair': case_pair, 'small': case_small, 'tcp': case_tcp,
         'crowd': case_crowd, 'lora': case_lora, 'multi': case_multi, 'halves': case_halves,
         'nixl': case_nixl, 'soon': case_soon, 'ranks': case_ranks, 'others': case_others, 'front': case_front}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--version', default='0.32.0')
    parser.add_argument('--keep', action='store_true')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--prompts', type=int, default=4, help='of the case share')
    parser.add_argument('cases', nargs='*')
    given = parser.parse_args()
    if not (ENGINES / f'vllm-{given.version}/ready').exists() or not (ENGINES / 'smollm2-135m/ready').exists():
        print(f'skipped: no vLLM {given.version} in {ENGINES}: scripts/setup --engines makes it')
        return 77
    if not (BIN / 'libmc.so').exists() or not (BIN / 'mc-store').exists():
        print(f'skipped: {BIN} has no build')
        return 77
    folder = pathlib.Path(tempfile.mkdtemp(prefix='mc-vllm.'))
    print(f'# vLLM {given.version}; logs in {folder}', flush=True)
    wrong = 0
    for name in given.cases or CASES:
        print(f'# case {name}: {CASES[name].__doc__}', flush=True)
        place = folder / name
        place.mkdir()
        test = Test(given.version, place, given.prompts)
        try:
            CASES[name](test, random.Random(given.seed))
        finally:
            test.end()
        wrong += test.wrong
    if not wrong and not given.keep:
        shutil.rmtree(folder)
    print(f'{wrong} wrong')
    return 1 if wrong else 0


sys.exit(main())
