"""A case of tests/nightly/vllm.py: servers whose KV another one must not take."""
import os
import subprocess
import sys

from vllm_servers import BIN, BLOCK, ROOT, prompts, wait_for, whole

# What is another, how its server is started, and the row of mc.doctor that says so.
OTHERS = {
    'another hash algorithm': ({'flags': ['--prefix-caching-hash-algo', 'sha256']}, 'hashes: '),
    'another seed of hashes': ({'environment': {'PYTHONHASHSEED': '7'}}, 'hashes: '),
    'blocks of another size': ({'flags': ['--block-size', str(2 * BLOCK)]}, 'block-size: 32 / 64'),
}


def doctor(master):
    """What python3 -m mc.doctor says of the pool."""
    done = subprocess.run([sys.executable, '-m', 'mc.doctor', master], capture_output=True, text=True, timeout=120, env={
        **os.environ, 'PYTHONPATH': str(ROOT / 'lib/python'), 'MC_LIBRARY': str(BIN.resolve() / 'libmc.so')})
    if done.returncode:
        raise SystemExit(f'failed: mc.doctor ends with {done.returncode}:\n{done.stdout}{done.stderr}')
    return done.stdout


def case_others(test, chance):
    """Servers that hash or lay out otherwise share nothing, and mc.doctor says by what they differ."""
    pool = test.pool(nodes=1, segment='1GiB')
    first = test.server('first', pool)
    tokens = prompts(first, 1, chance)[0][:1000]
    want = first.complete(tokens)
    wait_for('saving', lambda: first.saved() >= len(tokens) // BLOCK, 30)
    test.check('all that were here can share' in doctor(pool.master), 'of one server mc.doctor finds nothing to say')
    for at, (what, (how, row)) in enumerate(OTHERS.items()):
        before = pool.objects('vllm-fingerprint:')
        other = test.server(f'other{at}', pool, **how)
        answer = other.complete(tokens)
        loaded = other.metric('mc:loaded_blocks_total')
        test.check(answer.cached == 0 and loaded == 0, f'{what}: {answer.cached} tokens found, {loaded:.0f} blocks loaded')
        test.check(answer.tokens == want.tokens or not want.decided(), 'and the answer is the same')
        wait_for('its fingerprint', lambda before=before: pool.objects('vllm-fingerprint:') > before, 30)
        said = doctor(pool.master)
        test.check('do not share' in said and row in said, f'mc.doctor says: {next((line.strip() for line in said.splitlines() if row[:6] in line), "nothing of it")}')
        other.process.stop()
    first.forget()
    again = first.complete(tokens)
    test.check(again.cached == whole(tokens), f'the first one finds its own: {again.cached} of {len(tokens)} tokens')
    first.process.stop()
