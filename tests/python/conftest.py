"""Fixtures: a cluster that a file's tests share, and stores of it."""
import mc
import mc.cluster
import pytest


@pytest.fixture(scope='module')
def cluster():
    with mc.cluster.Cluster(nodes=2, size='32MiB', lease_ttl='60s') as c:
        yield c


@pytest.fixture
def store(cluster):
    with mc.Store(cluster.master) as s:
        yield s
