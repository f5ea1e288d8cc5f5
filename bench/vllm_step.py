#!/usr/bin/env python3
"""What a step of vLLM costs in Python with McConnector: CPU time of this thread, in microseconds.

    PYTHONPATH=lib/python MC_LIBRARY=build/release/libmc.so MC_BIN=build/release python3 bench/vllm_step.py

A real pool (mc.cluster), 1,000 blocks of 32 layers, no engine.
"""
import ctypes
import os
import time
import types

import mc.cluster
from mc.vllm.layout import Region
from mc.vllm.metrics import Counters
from mc.vllm.pool import Pool
from mc.vllm.scheduler import Scheduler
from mc.vllm.worker import Worker

BLOCKS, LAYERS, PIECE, SIZE = 1000, 32, 64, 32


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
        for number in range(20):
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
            for part, at in (('scheduler', 0), ('worker', 1)):
                values = sorted(cost[at] for cost in costs)
                print(f'{what} {BLOCKS} blocks of {LAYERS} layers, {part:9} p50 {values[len(values) // 2]:7.0f} us')
        idle = spent(lambda: (worker.before(scheduler.plan(step())), worker.finished()), 2000)
        print(f'a step with nothing to do                    {idle:7.1f} us')
        pool.close()


main()
