"""Writes vLLM's connector interface as JSON: run it with the Python of an environment that has vLLM.

    build/engines/vllm-0.32.0/bin/python tests/python/vllm_record.py tests/python/fixtures/vllm-0.32.0.json

test_vllm_contract.py compares the stand-in and McConnector with what it wrote.
"""
import inspect
import json
import sys


def record(base, classes):
    """Each method's parameters, and whether a class must have it."""
    out = {}
    for name in classes:
        found = getattr(base, name)
        members = {}
        for member, value in vars(found).items():
            plain = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
            if inspect.isfunction(plain) and (not member.startswith('__') or member == '__init__'):
                members[member] = {
                    'parameters': [str(p).split(':')[0].split('=')[0].strip()
                                   for p in inspect.signature(plain).parameters.values()],
                    'abstract': bool(getattr(plain, '__isabstractmethod__', False))}
            elif isinstance(value, property):
                members[member] = {'parameters': None, 'abstract': False}
        out[name] = members
    return out


CLASSES = ('KVConnectorBase_V1', 'SupportsHMA', 'KVConnectorWorkerMetadata')

if __name__ == '__main__':
    from vllm.distributed.kv_transfer.kv_connector.v1 import base
    with open(sys.argv[1], 'w') as out:
        out.write(json.dumps(record(base, CLASSES), indent=1, sort_keys=True) + '\n')
