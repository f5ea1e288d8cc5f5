#!/usr/bin/env python3
"""What a step of vLLM costs in Python with mc.vllm: CPU time for 1,000 blocks of 32 layers, in the
scheduler and in the worker together, against half a millisecond; and for a step with nothing to do,
against 50 us. A loopback cluster, no engine. bench/run vllm-step."""
import ctypes
import json
import os
import pathlib
import statistics
import sys
import time
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get('MC_BIN', ROOT / 'build/release')).resolve()
os.environ.update(MC_BIN=str(BUILD), MC_LIBRARY=str(BUILD / 'libmc.so'))
sys.path.insert(0, str(ROOT / 'lib/python'))
sys.dont_write_bytecode = True

import mc.cluster  # noqa: E402
from mc.vllm.layout import Region  # noqa: E402
from mc.vllm.metrics import Counters  # noqa: E402
from mc.vllm.pool import Pool  # noqa: E402
from mc.vllm.scheduler import Scheduler  # noqa: E402
from mc.vllm.worker import Worker  # noqa: E402

BLOCKS, LAYERS, PIECE, SIZE = 1000, 32, 64, 32


def figure(case, values, limit):
    value = statistics.median(values)
    print(json.dumps({'bench': 'vllm-step', 'case': case, 'value': round(value, 1), 'unit': 'us',
                      'against': 'budget', 'against_value': limit, 'ratio': round(limit / value, 3),
                      'n': len(values), 'spread': round((max(values) - min(values)) / value, 3),
                      'target': 1.0, 'met': value <= limit}), flush=True)


def spent(of, times=1):
    begun = time.thread_time_ns()
    for _ in range(times):
        of()
    return (time.thread_time_ns() - begun) / times / 1e3


def step(new=(), scheduled=None):
    cached = types.SimpleNamespace(req_ids=[], resumed_req_ids=set(), new_block_ids=[], num_computed_tokens=[])
    return types.SimpleNamespace(total_num_scheduled_tokens=1, scheduled_new_reqs=list(new),
                                 scheduled_cached_reqs=cached, num_scheduled_tokens=scheduled or {})


def main():
    memory = ctypes.create_string_buffer(BLOCKS * LAYERS * PIECE)
    base = ctypes.addressof(memory)
    with mc.cluster.Cluster(nodes=1, size='64MiB') as cluster:
        pool = Pool('bench', cluster.master, {}, 10.0)
        pool.register([Region(base + n * BLOCKS * PIECE, PIECE, PIECE) for n in range(LAYERS)], BLOCKS)
        worker = Worker(pool, 'tp0/1@pp0/1@g0', LAYERS * PIECE, save_queue=1 << 30, save_waits=False,
                        observe=Counters().moved)
        figures = {}
        for number in range(5 if '--quick' in sys.argv else 20):
            matched = []
            scheduler = Scheduler(SIZE, lambda *a: matched.pop(), lambda request: 'f' * 32)
            request = types.SimpleNamespace(
                request_id=f'r{number}', num_tokens=BLOCKS * SIZE + 1, num_prompt_tokens=BLOCKS * SIZE + 1,
                block_hashes=[os.urandom(32) for _ in range(BLOCKS)])
            blocks = list(range(BLOCKS))
            for what in ('put', 'get'):
                matched.append(0 if what == 'put' else BLOCKS)
                plan = None

                def plan_it():
                    nonlocal plan
                    found = scheduler.matched(request, 0)
                    if found:
                        scheduler.allocated(request, blocks, found)
                        plan = scheduler.plan(step())
                        return
                    new = types.SimpleNamespace(req_id=request.request_id, block_ids=(blocks,),
                                                num_computed_tokens=0)
                    plan = scheduler.plan(step([new], {request.request_id: BLOCKS * SIZE}))

                cost = spent(plan_it)

                def move():
                    worker.before(plan)
                    worker.load(plan)
                    worker.save(plan)
                    worker.finished()

                cost = cost, spent(move)
                while worker._saves or worker._loads:
                    pool.wait()
                    worker.finished()
                figures.setdefault(what, []).append(cost)
                scheduler.finished(request, []) if what == 'get' else scheduler._requests.clear()
        for what, costs in figures.items():
            figure(f'{what}, scheduler and worker', [sum(cost) for cost in costs], 500.0)
        idle = [spent(lambda: (worker.before(scheduler.plan(step())), worker.finished()), 500)
                for _ in range(5)]
        figure('nothing to do', idle, 50.0)
        pool.close()


main()
