"""Writes LMCache's connector interface as JSON: run it with the Python of an environment that has LMCache.

    build/engines/lmcache-0.5.6/bin/python tests/python/lmcache_record.py tests/python/fixtures/lmcache-0.5.6.json

test_lmcache_remote.py compares the stand-in and McConnector with what it wrote.
"""
import json
import sys

from vllm_record import record

CLASSES = ('ConnectorAdapter', 'RemoteConnector')


def interface():
    """Of the LMCache that is imported: the real one or the stand-in."""
    from lmcache.v1.storage_backend import connector
    from lmcache.v1.storage_backend.connector import base_connector
    return {**record(connector, ['ConnectorAdapter']), **record(base_connector, ['RemoteConnector'])}


if __name__ == '__main__':
    with open(sys.argv[1], 'w') as out:
        out.write(json.dumps(interface(), indent=1, sort_keys=True) + '\n')
