"""The pool of mc.vllm over a real store: what is put is got, and trouble ends in codes, in time."""
import itertools
import os
import signal
import time
from ctypes import addressof, create_string_buffer

import mc.cluster
import pytest
from mc import Code
from mc.vllm.layout import Region
from mc.vllm.pool import Pool

BLOCKS, LAYERS, PIECE = 16, 3, 4096
PREFIX = b'vllm:test@tp0/1@'


class Cache:
    """Memory of an engine: each layer has its blocks side by side, and gaps."""

    def __init__(self):
        self.memory = create_string_buffer(os.urandom(2 * LAYERS * BLOCKS * PIECE), 2 * LAYERS * BLOCKS * PIECE)
        base = addressof(self.memory)
        self.regions = [Region(base + layer * 2 * BLOCKS * PIECE, 2 * PIECE, PIECE) for layer in range(LAYERS)]

    def block(self, number):
        begins = [(layer * BLOCKS + number) * 2 * PIECE for layer in range(LAYERS)]
        return b''.join(self.memory[begin:begin + PIECE] for begin in begins)

    def gaps(self):
        return [self.memory[at:at + PIECE] for at in range(PIECE, len(self.memory), 2 * PIECE)]


def opened(master, name, timeout=20.0, **options):
    cache, pool = Cache(), Pool(name, master, {'verify': 'always', **options}, timeout)
    pool.register(cache.regions, BLOCKS)
    return cache, pool


def ended(pool):
    while not (done := pool.take()):
        pool.wait()
    return done[0]


def test_blocks_come_back_in_other_places(cluster):
    cache, pool = opened(cluster.master, 'one')
    hashes = os.urandom(5 * 32)
    pool.put(1, PREFIX, hashes, [0, 3, 5, 7, 15])
    assert ended(pool).codes == [0] * 5
    want = [cache.block(number) for number in (0, 3, 5, 7, 15)]
    pool.put(2, PREFIX, hashes, [1, 1, 1, 1, 1])  # it is there: nothing moves
    done = ended(pool)
    assert (done.tag, done.codes, done.existed) == (2, [0] * 5, 5)

    other, second = opened(cluster.master, 'two')
    gaps = other.gaps()
    assert second.match([PREFIX], hashes, 5) == 5
    assert second.match([PREFIX, b'vllm:else@'], hashes, 5) == 0
    second.get(7, PREFIX, hashes + os.urandom(32), [9, 8, 2, 1, 0, 4])
    before = other.block(4)
    done = ended(second)
    assert (done.tag, done.codes) == (7, [0] * 5 + [Code.NOT_FOUND])
    assert [other.block(number) for number in (9, 8, 2, 1, 0)] == want
    assert other.block(4) == before and other.gaps() == gaps
    pool.close()
    second.close()


def test_a_block_that_is_none_is_refused(cluster):
    _, pool = opened(cluster.master, 'three')
    pool.put(1, PREFIX, os.urandom(64), [0, BLOCKS])
    assert ended(pool).codes == [0, Code.INVALID]
    pool.close()


def test_an_engine_adds_memory_to_the_pool():
    with mc.cluster.Cluster(nodes=0) as own:
        _, pool = opened(own.master, 'offerer')
        pool.offer(16 << 20)
        hashes = os.urandom(32)
        end = time.monotonic() + 60
        for tag in itertools.count(1):  # until it is mounted
            pool.put(tag, PREFIX, hashes, [0])
            if ended(pool).codes == [0]:
                break
            assert time.monotonic() < end
        _, other = opened(own.master, 'reader')
        other.get(1, PREFIX, hashes, [5])
        assert ended(other).codes == [0]
        other.close()
        pool.close()


@pytest.mark.parametrize('victim', ['master', 's0'])
def test_nobody_waits_for_one_timeout_after_another(victim):
    with mc.cluster.Cluster(nodes=1, size='16MiB') as own:
        _, pool = opened(own.master, 'four', timeout=1.0, transports='tcp')
        hashes = os.urandom(32)
        pool.put(1, PREFIX, hashes, [0])
        assert ended(pool).codes == [0]
        own.kill(victim)
        begun = time.monotonic()
        calls = 240
        for tag in range(2, 2 + calls):
            pool.get(tag, PREFIX, hashes, [1])
        seen = []
        while len(seen) < calls:
            pool.wait()
            seen += pool.take()
        assert all(done.codes != [0] for done in seen)
        assert {done.tag for done in seen} == set(range(2, 2 + calls))
        # One after another by 4 threads they would take 60 s.
        assert time.monotonic() - begun < 40
        pool.close()


def test_a_lookup_in_a_hurry_ends_soon_and_may_be_repeated():
    with mc.cluster.Cluster(nodes=1, size='16MiB') as own:
        _, pool = opened(own.master, 'five', timeout=30.0)
        hashes = os.urandom(64)
        pool.put(1, PREFIX, hashes[:32], [0])
        assert ended(pool).codes == [0]
        assert pool.match([PREFIX], hashes, 2, 20.0) == 1
        os.kill(own.pid('master'), signal.SIGSTOP)
        begun = time.monotonic()
        assert [pool.match([PREFIX], hashes, 2, 0.002) for _ in range(3)] == [None] * 3
        assert time.monotonic() - begun < 10
        os.kill(own.pid('master'), signal.SIGCONT)
        assert pool.match([PREFIX], hashes, 2) == 1
        pool.close()
