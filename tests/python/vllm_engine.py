"""A small engine that uses McConnector as vLLM does: blocks, prefix cache, preemption, delayed frees.

The KV of a token is a digest of all tokens up to it. Before a token is computed, the KV of all tokens
before it is looked at: a single wrong byte fails the test. The pool reads and writes blocks as late as
it may, so what is overwritten too early, or used too soon, is seen.
"""

import copy
import hashlib
import types
from collections import Counter, OrderedDict

from mc.vllm.worker import Done

BLOCK = 4
OK, NOT_FOUND, NO_SPACE, UNAVAILABLE = 0, 2, 4, 7


def kv(tokens):
    return hashlib.sha256(repr(list(tokens)).encode()).digest()[:8]


def block_hash(tokens, salt):
    return hashlib.sha256(repr((salt, list(tokens))).encode()).digest()


class WrongToken(AssertionError):
    pass


class Shared:
    """The values of a pool, and what goes wrong in it."""

    def __init__(self):
        self.values, self.told = {}, {}
        self.refuse_puts = False
        self.lose = lambda key: False  # between the lookup and the read
        self.lookups = self.puts = 0


class FakePool:
    """In place of mc.vllm.pool.Pool. What is submitted happens in take(), or in wait() at the latest."""

    shared = Shared()
    random = None

    def __init__(self, name, master, options, timeout):
        assert options['verify'] == 'always'
        self._waiting = []

    def register(self, regions, blocks):
        self.blocks = blocks

    def tell(self, key, value):
        self.shared.told[key] = value

    def offer(self, size):
        self.offered = size

    def match(self, prefixes, hashes, count, within=0.0):
        self.shared.lookups += 1
        for at in range(count):
            name = hashes[at * 32 : at * 32 + 32]
            if not all(prefix + name in self.shared.values for prefix in prefixes):
                return at
        return count

    def code_name(self, code):
        return str(code)

    def put(self, tag, prefix, hashes, blocks):
        self._waiting.append((tag, prefix, hashes, list(blocks), True))

    def get(self, tag, prefix, hashes, blocks):
        self._waiting.append((tag, prefix, hashes, list(blocks), False))

    def take(self):
        out = []
        while self._waiting and self.random.random() < 0.4:
            out.append(self._do(self._waiting.pop(self.random.randrange(len(self._waiting)))))
        return out

    def wait(self, seconds=0.0):
        if self._waiting and not seconds:
            self._early = [self._do(self._waiting.pop(0))]
            take, self.take = self.take, lambda: (setattr(self, 'take', take), self._early)[1]

    def close(self, wait=0):
        pass

    def _do(self, job):
        tag, prefix, hashes, blocks, out = job
        codes = []
        for at, block in enumerate(blocks):
            key = prefix + hashes[at * 32 : at * 32 + 32]
            if out:
                self.shared.puts += 1
                if self.shared.refuse_puts:
                    codes.append(NO_SPACE)
                    continue
                self.shared.values.setdefault(key, list(self.memory[block]))
                codes.append(OK)
            elif key not in self.shared.values or self.shared.lose(key):
                codes.append(NOT_FOUND)
                self.memory[block] = ['half'] * BLOCK  # a read that failed may have written a part
            else:
                self.memory[block] = list(self.shared.values[key])
                codes.append(OK)
        return Done(tag, codes, 0.001)


class Request:
    def __init__(self, name, tokens, output, salt=None, lora=None):
        self.request_id, self.tokens, self.output = name, list(tokens), output
        self.num_prompt_tokens = len(tokens)
        self.num_computed_tokens = 0
        self.salt, self.lora_request = salt, lora
        self.skip_reading_prefix_cache = False
        self.kv_transfer_params = None
        self.block_hashes = []
        self.blocks, self.status = [], 'waiting'
        self.external = 0
        self.seen = False
        self.hash()

    def hash(self):
        while (len(self.block_hashes) + 1) * BLOCK <= len(self.tokens):
            self.block_hashes.append(block_hash(self.tokens[: (len(self.block_hashes) + 1) * BLOCK], self.salt))

    @property
    def num_tokens(self):
        return len(self.tokens)


class Blocks:
    def __init__(self, ids):
        self.ids = ids

    def get_block_ids(self):
        return ([*self.ids],)


class Engine:
    """`make(role, rank)` gives a connector. One step: schedule, run, look at what came back."""

    def __init__(self, make, blocks, budget=16, most_running=4, ranks=1):
        self.scheduler = make('scheduler', 0)
        self.workers = [make('worker', rank) for rank in range(ranks)]
        self.memories = [{block: [None] * BLOCK for block in range(blocks)} for _ in self.workers]
        for worker, memory in zip(self.workers, self.memories):
            worker.register_kv_caches({})
            worker._pool.memory = memory
        self.scheduler.set_xfer_handshake_metadata_pp_aware(
            {(0, rank): worker.get_handshake_metadata() for rank, worker in enumerate(self.workers)})
        self.waited_for = Counter()  # workers that have yet to tell of a request
        self.free = OrderedDict((block, None) for block in range(blocks))  # least recently used first
        self.users = dict.fromkeys(range(blocks), 0)
        self.cached, self.name_of = {}, {}  # hash -> block, and back
        self.waiting, self.running, self.all = [], [], {}
        self.finished_ids, self.received, self.broken = set(), set(), set()
        self.budget, self.most_running = budget, most_running
        self.external_tokens = self.preemptions = self.steps = 0
        self.answers = {}

    # ---- blocks

    def take_blocks(self, count):
        if len(self.free) < count:
            return None
        out = []
        for _ in range(count):
            block, _ = self.free.popitem(last=False)
            self.forget(block)
            self.users[block] = 1
            out.append(block)
        return out

    def forget(self, block):
        name = self.name_of.pop(block, None)
        if name is not None and self.cached.get(name) == block:
            del self.cached[name]

    def give_back(self, request):
        for block in reversed(request.blocks):
            self.users[block] -= 1
            if not self.users[block]:
                self.free[block] = None
        request.blocks = []

    def cache(self, request, tokens):
        for at in range(min(tokens // BLOCK, len(request.block_hashes))):
            name, block = request.block_hashes[at], request.blocks[at]
            if name not in self.cached and block not in self.name_of:
                self.cached[name], self.name_of[block] = block, name

    # ---- requests

    def add(self, request):
        self.all[request.request_id] = request
        self.waiting.append(request)

    def finish(self, request):
        """Ended or aborted."""
        loading = request.status == 'loading' and request.request_id not in self.received
        self.received.discard(request.request_id)
        self.broken.discard(request.request_id)
        request.status = 'finished'
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)
        keep, request.told = self.scheduler.request_finished_all_groups(request, (list(request.blocks),))
        self.finished_ids.add(request.request_id)
        if not keep and not loading:
            self.release(request)

    def release(self, request):
        self.give_back(request)
        del self.all[request.request_id]

    def preempt(self, request):
        self.preemptions += 1
        self.give_back(request)
        request.num_computed_tokens, request.status = 0, 'preempted'
        self.running.remove(request)
        self.waiting.insert(0, request)

    # ---- a step

    def schedule(self):
        out = types.SimpleNamespace(
            scheduled_new_reqs=[], num_scheduled_tokens={}, finished_req_ids=self.finished_ids,
            scheduled_cached_reqs=types.SimpleNamespace(
                req_ids=[], resumed_req_ids=set(), new_block_ids=[], num_computed_tokens=[]))
        self.finished_ids = set()
        left = self.budget
        for request in list(self.running):
            if request not in self.running or not left:
                continue
            count = min(left, request.num_tokens - request.num_computed_tokens)
            new = self.grow(request, count)
            if new is None:
                continue
            left -= count
            self.scheduled(out, request, count, new, False)
        for request in list(self.waiting):
            if not left or len(self.running) >= self.most_running or self.preempted_now:
                break
            count = self.admit(request, left)
            if count:
                left -= count
                self.waiting.remove(request)
                self.running.append(request)
                again = request.seen
                request.seen, request.status = True, 'running'
                self.scheduled(out, request, count, list(request.blocks), again, new=not again)
        self.preempted_now = False
        out.total_num_scheduled_tokens = sum(out.num_scheduled_tokens.values())
        out.kv_connector_metadata = self.scheduler.build_connector_meta(out)
        for name, count in out.num_scheduled_tokens.items():
            self.all[name].num_computed_tokens += count
        return out

    preempted_now = False

    def grow(self, request, count):
        """Blocks for `count` more tokens; preempts others for them, and itself at last."""
        need = -(-(request.num_computed_tokens + count) // BLOCK) - len(request.blocks)
        while True:
            new = self.take_blocks(max(0, need))
            if new is not None:
                request.blocks += new
                self.cache(request, request.num_computed_tokens + count)
                return new
            victim = self.running[-1]
            self.preempted_now = True
            self.preempt(victim)
            if victim is request:
                return None

    def admit(self, request, left):
        name = request.request_id
        if request.status == 'loading':
            if name not in self.received:
                return 0
            self.received.discard(name)
            if name in self.broken and not request.num_computed_tokens:
                self.give_back(request)
            else:
                self.cache(request, request.num_computed_tokens)
            self.broken.discard(name)
            request.status = 'waiting'
        if not request.num_computed_tokens:
            hits = []
            for at in range((request.num_tokens - 1) // BLOCK):
                block = self.cached.get(request.block_hashes[at])
                if block is None:
                    break
                hits.append(block)
            external, later = self.scheduler.get_num_new_matched_tokens(request, len(hits) * BLOCK)
            if external is None:
                return 0
            assert len(hits) * BLOCK + external < request.num_tokens
            for block in hits:
                self.users[block] += 1
                self.free.pop(block, None)
            count = 0 if external else min(left, request.num_tokens - len(hits) * BLOCK)
            need = -(-(len(hits) * BLOCK + external + count) // BLOCK) - len(hits)
            request.blocks = list(hits)
            # A load waits with blocks in hand: it is admitted only if all that do so can go on.
            others = sum(self.lacks(other) for other in self.waiting if other is not request and other.blocks)
            spare = others + self.lacks(request) if external else need
            new = self.take_blocks(need) if len(self.free) >= spare else None
            if new is None:
                self.give_back(request)
                return 0
            request.blocks += new
            self.scheduler.update_state_after_alloc(request, Blocks(request.blocks), external)
            request.num_computed_tokens = len(hits) * BLOCK + external
            self.external_tokens += external
            if external:
                assert later
                request.status = 'loading'
                return 0
            self.cache(request, request.num_computed_tokens + count)
            return count
        count = min(left, request.num_tokens - request.num_computed_tokens)
        need = -(-(request.num_computed_tokens + count) // BLOCK) - len(request.blocks)
        new = self.take_blocks(max(0, need))
        if new is None:
            return 0
        request.blocks += new
        self.scheduler.update_state_after_alloc(request, Blocks(request.blocks), 0)
        self.cache(request, request.num_computed_tokens + count)
        return count

    def lacks(self, request):
        """Blocks that a request needs for all its tokens, beyond those that it has."""
        return -(-request.num_tokens // BLOCK) - len(request.blocks)

    def scheduled(self, out, request, count, blocks, again, new=False):
        if new:
            out.scheduled_new_reqs.append(types.SimpleNamespace(
                req_id=request.request_id, block_ids=(list(blocks),),
                num_computed_tokens=request.num_computed_tokens))
        else:
            cached = out.scheduled_cached_reqs
            cached.req_ids.append(request.request_id)
            if again:
                cached.resumed_req_ids.add(request.request_id)
            cached.new_block_ids.append((list(blocks),) if blocks else None)
            cached.num_computed_tokens.append(request.num_computed_tokens)
        out.num_scheduled_tokens[request.request_id] = count

    def run(self, out):
        """All ranks; what they say is put together as vLLM does: a request has ended when all said so."""
        back = types.SimpleNamespace(finished_sending=set(), finished_recving=set(), invalid_block_ids=set(),
                                     kv_connector_worker_meta=None)
        for rank in range(len(self.workers)):
            self.run_rank(rank, copy.deepcopy(out), back)
        return back

    def run_rank(self, rank, out, back):
        worker, metadata = self.workers[rank], out.kv_connector_metadata
        worker.handle_preemptions(metadata)
        worker.bind_connector_metadata(metadata)
        for name, count in out.num_scheduled_tokens.items():
            self.forward(rank, self.all[name], count)
        worker.start_load_kv(None)
        if out.num_scheduled_tokens or self.steps % 2:  # 0.29 leaves it out in empty steps
            worker.wait_for_save()
        for what, names in zip(('finished_sending', 'finished_recving'),
                               worker.get_finished(out.finished_req_ids)):
            for name in names or ():
                self.waited_for[what, name] += 1
                if self.waited_for[what, name] == len(self.workers):
                    del self.waited_for[what, name]
                    getattr(back, what).add(name)
        back.invalid_block_ids |= worker.get_block_ids_with_load_errors()
        told = worker.build_connector_worker_meta()
        if told is not None:
            before = back.kv_connector_worker_meta
            back.kv_connector_worker_meta = told if before is None else before.aggregate(told)
        worker.clear_connector_metadata()

    def forward(self, rank, request, count):
        memory = self.memories[rank]
        begin = request.num_computed_tokens - count
        for at in range(begin, begin + count):
            for before in range(at):
                got = memory[request.blocks[before // BLOCK]][before % BLOCK]
                if got != kv([rank, request.salt, *request.tokens[: before + 1]]):
                    raise WrongToken(f'{request.request_id}: KV of token {before} is {got}')
            block = request.blocks[at // BLOCK]
            memory[block][at % BLOCK] = kv([rank, request.salt, *request.tokens[: at + 1]])

    def update(self, out, back):
        failed = back.invalid_block_ids
        for request in [r for r in self.waiting if r.status == 'loading']:
            for at, block in enumerate(request.blocks[: request.num_computed_tokens // BLOCK]):
                if block in failed:
                    request.num_computed_tokens = at * BLOCK
                    self.broken.add(request.request_id)
                    break
        for name in out.num_scheduled_tokens:
            request = self.all.get(name)
            if request is None or request.status != 'running':
                continue
            if request.num_computed_tokens == request.num_tokens:
                request.tokens.append(int.from_bytes(kv(request.tokens)[:2], 'big'))
                request.hash()
                if request.num_tokens - request.num_prompt_tokens >= request.output:
                    self.answers[name] = request.tokens[request.num_prompt_tokens :]
                    self.finish(request)
        self.scheduler.update_connector_output(back)
        for name in back.finished_recving or ():
            request = self.all[name]
            if request.status == 'loading':
                self.received.add(name)
            else:
                assert request.status == 'finished'
                self.release(request)
        for name in back.finished_sending or ():
            self.release(self.all[name])

    def step(self):
        self.steps += 1
        out = self.schedule()
        self.update(out, self.run(out))

    def drain(self, most=5000):
        while self.all:
            self.step()
            assert self.steps < most, f'stuck with {sorted(self.all)}'
