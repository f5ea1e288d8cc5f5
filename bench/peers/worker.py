#!/usr/bin/env python3
"""worker.py MODULE: one process of one side. Each line of its input is a JSON list, a method of the
module's class `Peer` and its named arguments; each line of its answer is `{"is": ...}` or
`{"failed": text}`. What libraries print goes to standard error."""
import importlib
import json
import os
import sys
import traceback

sys.dont_write_bytecode = True


def main():
    out = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)
    peer = importlib.import_module(sys.argv[1]).Peer()
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = {'is': getattr(peer, name)(**arguments)}
        except Exception as e:  # what a peer cannot do is an answer too
            traceback.print_exc()
            answer = {'failed': f'{type(e).__name__}: {e}'}
        print(json.dumps(answer), file=out, flush=True)
    os._exit(0)  # a peer's own way to end is not measured


main()
