"""Concurrent pairs with vLLM's MooncakeConnector: mooncake_pairs.py CONDUCTOR FOLDER.

The connector's workers want an accelerator (TransferEngine apart, they bind each thread to a device), so
what runs here is all of it that does without: its bootstrap server, its client of that server, and its
scheduler's side, which reads what mc-conductor says to either half. Answers are a mock's.
"""

import asyncio
import collections
import json
import os
import re
import subprocess
import sys
import time
import types
import urllib.error
import urllib.request

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector as theirs
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_utils import MooncakeBootstrapServer

# Last, and with -P: this folder has a vllm.py, which is not the package.
sys.path.append(os.path.dirname(os.path.abspath(__file__)))
import halves  # noqa: E402

ENGINE = 'engine-of-the-first'
ANSWER = {'id': 'x', 'object': 'text_completion', 'created': 1, 'model': 'm',
          'choices': [{'index': 0, 'text': 'abc', 'finish_reason': 'stop'}],
          'usage': {'prompt_tokens': 4, 'completion_tokens': 1, 'total_tokens': 5}}


def scheduler(role):
    transfer = types.SimpleNamespace(kv_role=role)
    config = types.SimpleNamespace(
        cache_config=types.SimpleNamespace(block_size=16), kv_transfer_config=transfer,
        scheduler_config=types.SimpleNamespace(disable_hybrid_kv_cache_manager=True))
    cache = types.SimpleNamespace(transfer_groups=[], kv_cache_groups=[], has_mamba_layers=False,
                                  transfer_group_ids=[], select_transfer_block_ids=list)
    return theirs.MooncakeConnectorScheduler(config, ENGINE, cache)


class Half(halves.Half):
    """Half of a pair: its server has `scheduler`, `asked` and `metas`, what the workers would get."""

    def answer(self, body):
        if 'max_tokens' not in body and 'max_output_tokens' not in body:
            return {'count': 4, 'max_model_len': 64, 'tokens': [1, 2, 3, 4]}
        request = types.SimpleNamespace(
            request_id=f'r{len(self.server.asked)}', kv_transfer_params=body.get('kv_transfer_params'),
            prompt_token_ids=[1, 2, 3, 4], num_prompt_tokens=4)
        blocks = types.SimpleNamespace(get_unhashed_block_ids_all_groups=lambda: ([7],))
        side = self.server.scheduler
        side.on_new_request(request)
        fetched, later = side.get_num_new_matched_tokens(request, 0)
        side.update_state_after_alloc(request, blocks, fetched)
        self.server.asked.append(body)
        self.server.metas.append((fetched, later, side.build_connector_meta(None)))
        return ANSWER


def addresses_by(address):
    """What a worker of the second half learns of the first, by its own code."""
    worker = types.SimpleNamespace(_remote_agents={}, _tp_size={},
                                   _pending_bootstrap_queries={address: asyncio.Event()})
    asyncio.run(theirs.MooncakeConnectorWorker._connect_to_prefiller_bootstrap(worker, address))
    return worker._remote_agents


def why_no_worker():
    """Why no worker of the connector runs here: the line of its constructor that fails."""
    try:
        theirs.torch.accelerator.current_device_index()
    except RuntimeError as e:
        return str(e).splitlines()[0]
    return ''


def main():
    conductor, folder = sys.argv[1:]
    bootstrap = MooncakeBootstrapServer('127.0.0.1', 0)
    bootstrap.start()
    at = f'http://127.0.0.1:{bootstrap.port}'
    (first, p), (second, d) = (halves.serve(Half, scheduler=scheduler(role), asked=[], metas=[])
                               for role in ('kv_producer', 'kv_consumer'))
    engines = os.path.join(folder, 'engines.json')
    with open(engines, 'w') as to:
        json.dump([{'instance_id': 'p', 'url': p, 'model': 'm', 'role': 'prefill', 'pair': 'concurrent',
                    'bootstrap': at},
                   {'instance_id': 'd', 'url': d, 'model': 'm', 'role': 'decode', 'pair': 'concurrent'}],
                  to)
    log = os.path.join(folder, 'conductor.log')
    with open(log, 'w') as to, subprocess.Popen(
            [conductor, '--listen', '127.0.0.1:0', '--http', '127.0.0.1:0', '--foreign-engines', engines],
            stdout=to, stderr=to) as child:
        try:
            end = time.monotonic() + 60
            url = None
            registered = False
            while True:
                assert child.poll() is None and time.monotonic() < end, open(log).read()
                found = re.search(r'http (127\.0\.0\.1:\d+)', open(log).read())
                try:
                    if found:
                        url = 'http://' + found[1]
                        urllib.request.urlopen(url + '/ready', timeout=5).read()
                        break
                except urllib.error.HTTPError:
                    # Up only once a worker of the first half has told its bootstrap server of itself.
                    if not registered and 'bootstrap' in json.dumps(json.load(
                            urllib.request.urlopen(url + '/cluster', timeout=5))):
                        halves.post(at + '/register', {'engine_id': ENGINE, 'dp_rank': 0, 'tp_rank': 0,
                                                       'pp_rank': 0, 'addr': 'tcp://127.0.0.1:9'})
                        registered = True
                time.sleep(0.1)
            assert registered
            for path, body in (('/v1/completions', {'prompt': 'hello', 'max_tokens': 7}),
                               ('/v1/chat/completions', {
                                   'messages': [{'role': 'user', 'content': 'x'}], 'max_tokens': 7}),
                               ('/v1/responses', {'input': 'hello', 'max_output_tokens': 7})):
                answer = halves.post(url + path, {'model': 'm', **body})
                assert answer['id'] == 'x', answer
        finally:
            child.terminate()
    assert len(first.metas) == len(second.metas) == 3, (first.asked, second.asked)
    transfers = collections.Counter()
    for (mine, their) in zip(first.metas, second.metas):
        (transfer, _), = mine[2].reqs_to_send.values()
        pull, = their[2].reqs_to_recv[ENGINE].values()
        assert (their[0], their[1]) == (4, True), their  # all of the prompt is fetched, meanwhile
        assert pull.transfer_id == transfer, (pull, transfer)
        assert pull.remote_bootstrap_addr == at, pull
        assert addresses_by(pull.remote_bootstrap_addr) == {ENGINE: {0: {0: 'tcp://127.0.0.1:9'}}}
        transfers[transfer] += 1
    assert max(transfers.values()) == 1, transfers
    for body in first.asked:
        assert 1 in (body.get('max_tokens'), body.get('max_output_tokens')), body
    bootstrap.shutdown()
    print(f'mooncake_pairs: 3 requests met by vLLM\'s own code; no worker runs here: {why_no_worker() or "?"}')


main()
