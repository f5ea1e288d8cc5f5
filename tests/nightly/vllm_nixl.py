"""A case of vllm.py: vLLM's own NixlConnector between two servers, with mc-conductor before them."""

import http.client
import json

from vllm_client import stream
from vllm_servers import BLOCK, ENGINES, OUTPUT, PATIENCE, Front, free_port, prompts

TOKEN = 30 * 3 * 64 * 2 * 4  # bytes of KV: layers, KV heads, their size, keys and values, float32


def nixl_names(folder):
    """A folder for PYTHONPATH where NIXL has the name that vLLM imports; nothing where it is not installed."""
    sites = sorted((ENGINES / 'nixl/lib').glob('python3*/site-packages'))
    if not (ENGINES / 'nixl/ready').exists() or not sites:
        return None
    names = folder / 'nixl-names'
    names.mkdir()
    for name, of in (('nixl', 'nixl_cu12'), ('nixl_cu12.libs', 'nixl_cu12.libs')):
        (names / name).symlink_to(sites[0] / of)
    return names


def half(test, name, role, names):
    """A server that hands its KV over, or fetches another's. What it cannot fetch it does not compute."""
    said = {'kv_connector': 'NixlConnector', 'kv_role': role, 'kv_buffer_device': 'cpu',
            'kv_load_failure_policy': 'fail'}
    return test.server(name, None, kv='300M', wait=False, transfer=lambda _: said, path=[names],
                       environment={'VLLM_NIXL_SIDE_CHANNEL_PORT': str(free_port())})


def post(port, path, body):
    """The JSON that answers this one."""
    line = http.client.HTTPConnection('127.0.0.1', port, timeout=PATIENCE)
    line.request('POST', path, json.dumps(body), {'content-type': 'application/json'})
    reply = line.getresponse()
    told = reply.read()
    line.close()
    if reply.status != 200:
        raise SystemExit(f'failed: {path} is answered by {reply.status}: {told[:300]!r}')
    return json.loads(told)


def texts(answer):
    return [choice.get('text') or choice['message']['content'] for choice in answer['choices']]


def case_nixl(test, chance):
    """vLLM's own NixlConnector: a prompt is computed by one server, and another fetches its KV and answers."""
    names = nixl_names(test.folder)
    if names is None:
        print(f'# skipped: no NIXL in {ENGINES}: scripts/setup --peers nixl makes it')
        return
    first, second = half(test, 'first', 'kv_producer', names), half(test, 'second', 'kv_consumer', names)
    for server in (first, second):
        server.wait()
    through(test, first, second, chance)
    for server in (first, second):
        test.check(server.alive(), f'{server.name} lives')
        server.process.stop()


def counted(first, second):
    """What the first computed and said, what the second took, and the bytes of it."""
    return (first.metric('vllm:prompt_tokens_total'), first.metric('vllm:generation_tokens_total'),
            second.metric('vllm:external_prefix_cache_hits_total'), second.metric('vllm:nixl_bytes_transferred_sum'))


def through(test, first, second, chance):
    """Prompts, and other requests, through mc-conductor."""
    front = Front(test.folder, [{'instance_id': server.name, 'url': f'http://127.0.0.1:{server.port}', 'modelname': 'm',
                                 'role': role, 'block_size': BLOCK}
                                for role, server in (('prefill', first), ('decode', second))])
    test.running.append(front.process)
    asked = prompts(first, 4, chance)
    before = counted(first, second)
    replies = [stream('127.0.0.1', front.port, tokens, OUTPUT, model=front.model) for tokens in asked]
    total = sum(map(len, asked))
    computed, told, taken, moved = (now - then for now, then in zip(counted(first, second), before))
    test.check(computed == total and told == len(asked),
               f'the first computed {computed:.0f} tokens of prompts, and said one token each')
    test.check(taken == total, f'the second took {taken:.0f} of {total} tokens from the first')
    wanted = sum(-(-len(tokens) // BLOCK) for tokens in asked) * BLOCK * TOKEN
    test.check(moved == wanted, f'NIXL moved {moved / 1e6:.0f} MB; the blocks of these prompts have {wanted / 1e6:.0f}')
    second.forget()
    alone = [second.complete(tokens, return_tokens_as_token_ids=True) for tokens in asked]
    right = sum(a.tokens == [f'token_id:{t}' for t in b.tokens] or not a.decided() for a, b in zip(alone, replies))
    test.check(all(a.cached == 0 for a in alone) and right == len(asked),
               f'{right} of {len(asked)} answers are those that the second gives alone '
               f'({sum(a.decided() for a in alone)} decided)')
    others(test, front, first, second, asked[0])
    front.process.stop()


def others(test, front, first, second, tokens):
    """Chats are handed over too. Blocks handed over are of one prompt, and are read once: several prompts and
    several answers do not get them."""
    rest = {'max_tokens': OUTPUT, 'temperature': 1, 'top_k': 1}  # several answers may not be greedy by name
    chat = {'messages': [{'role': 'user', 'content': 'Name the largest river of Africa, and say where it ends.'}]}
    kinds = {'a chat': ('/v1/chat/completions', chat, True),
             'a response': ('/v1/responses', {'input': 'Name a river of Asia, and say where it ends.'}, True),
             'two answers': ('/v1/completions', {'prompt': tokens[:400], 'n': 2}, False),
             'two prompts': ('/v1/completions', {'prompt': [tokens[:150], tokens[200:900]]}, False)}
    for what, (path, body, fetched) in kinds.items():
        more = dict(rest)
        if path == '/v1/responses':
            more = {'max_output_tokens': OUTPUT, 'temperature': 0}
        second.forget()
        taken = second.metric('vllm:external_prefix_cache_hits_total')
        got = post(front.port, path, {'model': front.model, **body, **more})
        taken = second.metric('vllm:external_prefix_cache_hits_total') - taken
        second.forget()
        want = post(second.port, path, {'model': 'm', **body, **more})
        if path == '/v1/responses':
            same = [item['content'] for item in got['output']] == [item['content'] for item in want['output']]
        else:
            same = texts(got) == texts(want)
        test.check(same and (taken > 0) == fetched, f'{what}: as the second alone has it, {taken:.0f} tokens fetched')
    log = first.process.log.read_text(errors='replace')
    test.check('Potentially invalid KV blocks' not in log, 'no block was read after it was free')
    failed = second.metric('vllm:nixl_num_failed_transfers_total')
    test.check(failed == 0, f'{failed:.0f} transfers failed')
