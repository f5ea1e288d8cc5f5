"""mc.lmcache.McClient as LMCache's server drives it: batches from any thread, one poller."""
import mmap
import os
import select
import signal

import mc
import mc.cluster
import pytest
from mc.lmcache import McClient

SECONDS = 60.0  # until a test is a failure
MIB = 1 << 20


def until(client, numbers):
    """Polls and drains as the adapter's thread does; completions by number."""
    poller, done = select.poll(), {}
    poller.register(client.event_fd(), select.POLLIN)
    while set(numbers) - set(done):
        assert poller.poll(SECONDS * 1000), f'no completion of {sorted(set(numbers) - set(done))}'
        for number, *rest in client.drain_completions():
            assert number not in done
            done[number] = tuple(rest)
    return done


def one(client, number):
    return until(client, [number])[number]


@pytest.fixture
def client(cluster):
    opened = McClient(master=cluster.master, namespace='test', timeout='20s')
    yield opened
    opened.close()


def views(count, size=1000, fill=True):
    pieces = [bytearray([n + 1 if fill else 0]) * size for n in range(count)]
    return pieces, [memoryview(piece) for piece in pieces]


def test_refuses_to_start_without_a_namespace():
    with pytest.raises(ValueError, match='namespace'):
        McClient(master='127.0.0.1:1')
    for name in ('a/b', 'a@b', 'x' * 65, ' '):
        with pytest.raises(ValueError, match='namespace'):
            McClient(master='127.0.0.1:1', namespace=name)


def test_names_what_it_does_not_know():
    with pytest.raises(ValueError, match="'tiemout'.*did you mean 'timeout'"):
        McClient(namespace='a', tiemout='1s')
    with pytest.raises(ValueError, match='timeout: .*1 h'):
        McClient(namespace='a', timeout='1 h')
    with pytest.raises(ValueError, match='every call must end'):
        McClient(namespace='a', timeout=0)


def test_stores_finds_and_loads(client):
    keys = [f'model@00000001@0@{n:02x}' for n in range(3)]
    stored, given = views(3)
    assert one(client, client.submit_batch_set(keys, given))[:2] == (True, '')
    assert one(client, client.submit_batch_exists(['none', *keys]))[2] == [False, True, True, True]
    loaded, into = views(3, fill=False)
    assert one(client, client.submit_batch_get(keys, into)) == (True, '', [True] * 3)
    assert loaded == stored


def test_a_key_that_is_not_there_fails_alone(client):
    stored, given = views(1)
    one(client, client.submit_batch_set(['there'], given))
    loaded, into = views(2, fill=False)
    good, why, each = one(client, client.submit_batch_get(['none', 'there'], into))
    assert (good, each) == (False, [False, True])
    assert 'not-found' in why and loaded[1] == stored[0]


@pytest.mark.parametrize('size', [999, 1001])
def test_a_value_of_another_size_is_not_there(client, size):
    """A chunk of another layout must never count as loaded."""
    key = f'sized-{size}'
    one(client, client.submit_batch_set([key], views(1)[1]))
    assert one(client, client.submit_batch_get([key], views(1, size)[1]))[2] == [False]


def test_the_same_key_twice_in_a_batch(client):
    one(client, client.submit_batch_set(['twice'], views(1)[1]))
    loaded, into = views(2, fill=False)
    assert one(client, client.submit_batch_get(['twice', 'twice'], into))[2] == [True, True]
    assert loaded[0] == loaded[1] == views(1)[0][0]


def test_namespaces_do_not_share(cluster, client):
    one(client, client.submit_batch_set(['mine'], views(1)[1]))
    other = McClient(master=cluster.master, namespace='other')
    try:
        assert one(other, other.submit_batch_exists(['mine']))[2] == [False]
    finally:
        other.close()
    with mc.Store(cluster.master) as store:
        assert store.exists('lmcache:test/mine')


def test_deletes_but_not_what_is_read(cluster, client):
    one(client, client.submit_batch_set(['old', 'leased'], views(2)[1]))
    with mc.Store(cluster.master) as store:
        store.size('lmcache:test/leased')
        assert one(client, client.submit_batch_delete(['old', 'leased', 'none']))[2] == [True, False, True]
    assert one(client, client.submit_batch_exists(['old', 'leased']))[2] == [False, True]


def test_what_a_lookup_found_stays_until_it_is_loaded(cluster, client):
    """Leased are those before the first gap, which is what a prompt's load begins with."""
    keys = [f'held-{n}' for n in range(3)]
    one(client, client.submit_batch_set(keys, views(3)[1]))
    found = one(client, client.submit_batch_exists([*keys[:2], 'none', keys[2]]))[2]
    assert found == [True, True, False, True]
    with mc.Store(cluster.master) as store:
        codes = store.remove_many([f'lmcache:test/{key}' for key in keys]).values()
        assert [done.code for done in codes] == [mc.Code.BUSY, mc.Code.BUSY, mc.Code.OK]
    assert one(client, client.submit_batch_get(keys[:2], views(2)[1]))[2] == [True, True]


def test_registers_the_pool_that_views_lie_in(client):
    pool = mmap.mmap(-1, 32 * MIB)
    pool[0:5] = b'chunk'
    for at in range(4):
        one(client, client.submit_batch_set([f'pool-{at}'], [memoryview(pool)[at * 4096:(at + 1) * 4096]]))
    assert len(client._seen._memory) == 1 and client._seen.bytes >= 32 * MIB
    into = memoryview(pool)[16 * MIB:16 * MIB + 4096]
    assert one(client, client.submit_batch_get(['pool-0'], [into]))[0]
    assert bytes(into[:5]) == b'chunk' and len(client._seen._memory) == 1


def test_what_the_pool_does_not_answer_is_a_miss():
    """Every batch completes, whether the master or the node is stopped or gone; then it works again."""
    with mc.cluster.Cluster(nodes=1, size='32MiB') as c:
        client = McClient(master=c.master, namespace='test', timeout='300ms')
        while not one(client, client.submit_batch_set(['k'], views(1)[1]))[0]:
            pass
        os.kill(c.pid('master'), signal.SIGSTOP)
        batches = [client.submit_batch_get(['k'], views(1)[1]) for _ in range(60)]
        batches += [client.submit_batch_exists(['k']), client.submit_batch_delete(['k'])]
        done = until(client, batches)
        assert not any(each and any(each) for _, _, each in done.values())
        assert sum('unavailable' in why for _, why, _ in done.values()) > 20, 'each waited for itself'
        os.kill(c.pid('master'), signal.SIGCONT)
        while not one(client, client.submit_batch_exists(['k']))[0]:
            pass  # the pause is a second
        c.kill('s0')
        good, _, each = one(client, client.submit_batch_get(['k'], views(1)[1]))
        assert (good, each) == (False, [False])
        c.kill('master')
        done = until(client, [client.submit_batch_set(['k'], views(1)[1]) for _ in range(5)])
        assert not any(good for good, _, _ in done.values())
        client.close()
        client.close()
