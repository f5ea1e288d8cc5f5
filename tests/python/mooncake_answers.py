"""mooncake_answers.py MASTER PEER: what `mooncake` answers, a JSON object a line: step and answer.

The same script runs over the real package and over ours (MC_COMPAT=1), whose answers
tests/python/test_mooncake.py compares with those of the real package in fixtures/mooncake.json.
What ends the real package's process (calls before setup and after close) is not in it.
"""
import ctypes
import json
import os
import subprocess
import sys

if os.environ.get('MC_COMPAT'):
    import mc.compat.mooncake
    mc.compat.mooncake.install()

from mooncake.store import MooncakeDistributedStore, ReplicateConfig  # noqa: E402

STEPS = []


def step(work):
    STEPS.append(work)
    return work


def plain(answer):
    """As JSON has it."""
    if isinstance(answer, (bytes, bytearray)):
        return 'bytes ' + bytes(answer).decode('latin-1')
    if isinstance(answer, (list, tuple)):
        return [plain(a) for a in answer]
    if isinstance(answer, dict):
        return {str(k): plain(v) for k, v in answer.items()}
    return answer if isinstance(answer, (int, str, float, bool, type(None))) else type(answer).__name__


class Memory:
    """Memory of this process, by address."""

    def __init__(self, content):
        self.size = len(content)
        self.block = (ctypes.c_char * max(self.size, 1))()
        self.at = ctypes.addressof(self.block)
        ctypes.memmove(self.at, bytes(content), self.size)

    @property
    def bytes(self):
        return ctypes.string_at(self.at, self.size)


def setup(master, size=64 << 20):
    s = MooncakeDistributedStore()
    code = s.setup('127.0.0.1', 'P2PHANDSHAKE', size, 16 << 20, 'tcp', '', master)
    return s, code


@step
def put_and_get(s):
    return [s.put('a', b'bytes'), s.get('a'), s.put('a', b'other'), s.get('a'), s.get('absent'),
            s.is_exist('a'), s.is_exist('absent'), s.get_size('a'), s.get_size('absent')]


@step
def batches(s):
    return [s.put_batch(['b1', 'b2'], [b'one', b'two']), s.get_batch(['b1', 'absent', 'b2']),
            s.batch_is_exist(['b1', 'absent', 'b2']), s.put_batch(['b1', 'b3'], [b'x', b'y']),
            s.batch_is_exist([]), s.get_batch([])]


@step
def one_key_twice_in_a_batch(s):
    return [s.put_batch(['twice', 'twice'], [b'1', b'2']), s.get_size('twice')]


@step
def lists_that_do_not_fit(s):
    memory = Memory(b'0123456789')
    at = memory.at
    return [s.put_batch(['fit1', 'fit2'], [b'1']), s.batch_put_from(['fit1'], [at, at], [1, 1]),
            s.batch_put_from_multi_buffers(['fit1', 'fit2'], [[at, at], [at]], [[1], [1]]),
            s.batch_get_into(['a'], [at, at], [10, 10]), s.batch_is_exist(['fit1', 'fit2']),
            s.get_into_ranges([at], [['a']], [[[0, 3]]], [[[0]]], [[[1]]])]


@step
def no_bytes(s):
    memory = Memory(b'0123456789')
    return [s.put('none', b''), s.put_parts('none'), s.put_from('none', memory.at, 0),
            s.put_batch(['some', 'none'], [b'x', b'']), s.batch_is_exist(['some', 'none']),
            s.batch_put_from(['some', 'none'], [memory.at, memory.at], [3, 0]), s.get('some'),
            s.get_size('none'), s.upsert('some', b''), s.get('some')]


@step
def keys_that_cannot_be(s):
    return [s.put('', b'x'), s.get(''), s.get_size(''), s.remove(''), s.is_exist(''),
            s.batch_remove(['', 'absent'], True)]


@step
def one_key_twice(s):
    memory = Memory(b'0123456789')
    at = memory.at
    return [s.batch_put_from(['tw1', 'tw1'], [at, at], [3, 4]), s.get('tw1'),
            s.upsert_batch(['tw1', 'tw1'], [b'a', b'b']), s.get('tw1'),
            s.batch_upsert_from(['tw1', 'tw1'], [at, at], [3, 4]), s.get('tw1'),
            s.batch_remove(['tw1', 'tw1'], True)]


@step
def looked_at(s):
    s.put_batch(['look1', 'look2', 'look3'], [b'1', b'2', b'3'])
    return [s.is_exist('look1'), s.remove('look1'), s.batch_is_exist(['absent', 'look2']), s.remove('look2'),
            s.remove('look3')]


@step
def places_that_do_not_fit(s):
    into = Memory(bytes(20))
    return [s.batch_get_into_multi_buffers(['a'], [[into.at]], [[size]]) for size in (4, 5, 6)]


@step
def memory_that_overlaps(s):
    memory = Memory(bytes(200))
    at = memory.at
    return [s.register_buffer(at, 100), s.register_buffer(at + 50, 100), s.register_buffer(at + 50, 10),
            s.register_buffer(at + 100, 10), s.unregister_buffer(at + 50), s.unregister_buffer(at),
            s.unregister_buffer(at + 100)]


@step
def patterns(s):
    def tried(pattern):
        s.put_batch(['pat-1', 'pat-a', 'pat.A'], [b'1', b'2', b'3'])
        return s.remove_by_regex(pattern, True)
    return [tried(p) for p in ('^pat-[[:digit:]]$', '^pat\\W(?!1)', 'pat-**1', '^(pat)[-.](?:a|A)$', '^pat-[^a]',
                               '(?i)PAT', '(?<=p)at', '(?P<a>b)', 'pat{', 'pat-{1}a', '[]', '\\Apat', '*')]


@step
def sessions(s):
    out, into = Memory(b'0123456789'), Memory(bytes(20))
    read = (['a', 'absent'], [[into.at, into.at + 10], [into.at]], [[2, 1], [1]], [[1, 0], [0]])
    write = (['ses', 'a'], [[out.at, out.at + 5], [out.at]], [[5, 5], [1]], [[5, 0], [0]])
    return [s.batch_get_into_multi_buffer_ranges(*read), s.batch_get_session_start(read[0]),
            s.batch_get_into_multi_buffer_ranges(*read), into.bytes, s.batch_get_session_end(read[0]),
            s.batch_get_into_multi_buffer_ranges(*read), s.batch_put_session_start(['ses', 'a'], [10, 1]),
            s.batch_put_from_multi_buffer_ranges(*write), s.is_exist('ses'), s.batch_put_session_end(['ses', 'a']),
            s.get('ses'), s.batch_put_session_start(['ses2'], [5]), s.batch_put_session_revoke(['ses2', 'ses3']),
            s.is_exist('ses2')]


@step
def refused_settings(s):
    answers, memory = [], Memory(b'x')
    for name, value in (('replica_num', 0), ('nof_replica_num', 1), ('dfs_replica_num', 1),
                        ('soft_pin_ttl_ms', 1000), ('group_ids', ['a', 'b'])):
        c = ReplicateConfig()
        setattr(c, name, value)
        answers += [s.put('refused', b'x', c), s.batch_put_from(['refused'], [memory.at], [1], c)]
    return [*answers, s.is_exist('refused'), str(ReplicateConfig())]


@step
def parts(s):
    return [s.put_parts('p', b'ab', b'cd', b'e'), s.get('p')]


@step
def buffers(s):
    handle = s.get_buffer('a')
    found = s.batch_get_buffer(['a', 'absent'])
    return [handle.size(), handle.ptr() != 0, bytes(memoryview(handle)), len(handle),
            s.get_buffer('absent'), found[0].size(), found[1]]


@step
def memory_by_address(s):
    out, into = Memory(b'0123456789'), Memory(bytes(20))
    codes = [s.register_buffer(out.at, out.size), s.register_buffer(into.at, into.size),
             s.register_buffer(out.at, out.size)]
    codes += [s.put_from('m', out.at, 10), s.get_into('m', into.at, 20), into.bytes,
              s.get_into('absent', into.at, 20), s.get_into('m', into.at, 5)]
    codes += [s.batch_put_from(['m1', 'm2'], [out.at, out.at + 5], [5, 5]),
              s.batch_get_into(['m2', 'absent', 'm1'], [into.at, into.at + 5, into.at + 10],
                               [5, 5, 10]), into.bytes]
    codes += [s.unregister_buffer(out.at), s.unregister_buffer(into.at)]
    return codes


@step
def metadata(s):
    out = Memory(b'datameta')
    code = s.register_buffer(out.at, out.size)
    done = s.put_from_with_metadata('meta', out.at, out.at + 4, 4, 4)
    return [code, done, s.get('meta'), s.unregister_buffer(out.at)]


@step
def several_places(s):
    out, into = Memory(b'aabbccdd'), Memory(bytes(8))
    codes = [s.register_buffer(out.at, 8), s.register_buffer(into.at, 8)]
    codes.append(s.batch_put_from_multi_buffers(
        ['v1', 'v2'], [[out.at, out.at + 6], [out.at + 2, out.at + 4]], [[2, 2], [2, 2]]))
    codes.append([s.get('v1'), s.get('v2')])
    codes.append(s.batch_get_into_multi_buffers(
        ['v2', 'absent'], [[into.at, into.at + 4], [into.at + 6]], [[2, 2], [2]]))
    codes += [into.bytes, s.unregister_buffer(out.at), s.unregister_buffer(into.at)]
    return codes


@step
def ranges(s):
    into = Memory(bytes(16))
    code = s.register_buffer(into.at, 16)
    done = s.get_into_ranges([into.at], [['a', 'absent']], [[[0, 8], [0]]], [[[1, 0], [0]]],
                             [[[2, 3], [1]]])
    return [code, done, into.bytes, s.unregister_buffer(into.at)]


@step
def leased_and_removed(s):
    s.put('leased', b'x')
    return [s.get('leased'), s.remove('leased'), s.remove('leased', True), s.remove('leased'),
            s.batch_remove(['b1', 'absent'], True), s.is_exist('b1')]


@step
def removed_by_pattern(s):
    s.put_batch(['re-1', 're-2', 'other-re'], [b'1', b'2', b'3'])
    return [s.remove_by_regex('^re-', True), s.is_exist('re-1'), s.is_exist('other-re'),
            s.remove_by_regex('er-r', True), s.is_exist('other-re'), s.remove_by_regex('[', True),
            s.remove_by_regex('nothing', True)]


@step
def replaced(s):
    return [s.upsert('u', b'first'), s.upsert('u', b'second!'), s.get('u'),
            s.upsert_batch(['u', 'u2'], [b'third', b'new']), s.get('u'), s.upsert_parts('u', b'4', b'5'),
            s.get('u')]


@step
def config(s):
    c = ReplicateConfig()
    c.replica_num = 1
    c.with_hard_pin = True
    many = ReplicateConfig()
    many.replica_num = 1
    many.prefer_alloc_in_same_node = True
    return [s.put('c1', b'pinned', c), s.put('c2', b'near', many), s.get('c1'), s.get('c2')]


@step
def replicas(s):
    found = s.get_replica_desc('a')
    both = s.batch_get_replica_desc(['a', 'absent'])
    first = found[0]
    return [len(found), first.status.name, first.is_memory_replica(), first.is_disk_replica(),
            first.is_local_disk_replica(),
            first.get_memory_descriptor().buffer_descriptor.size, sorted(both),
            len(s.get_replica_desc('absent'))]


@step
def too_large(s):
    return [s.put('large', bytes(100 << 20))]


@step
def health(s):
    host, _, port = s.get_hostname().partition(':')
    return [s.health_check(), host, port.isdigit()]


@step
def all_removed(s):
    s.put('last', b'x')
    return [s.remove_all(True) > 5, s.is_exist('last'), s.remove_all(True)]


@step
def closed(s):
    return [s.close()]


@step
def without_a_master(_):
    s = MooncakeDistributedStore()
    before = [s.health_check(), s.get('a')]
    return [*before, setup('127.0.0.1:1')[1] < 0]


def transfers(peer):
    """What the engine answers, with a peer process that offers 4 KiB and says where."""
    from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode
    address, at = peer
    engine = TransferEngine()
    out, into = Memory(b'x' * 100 + b'y' * 100), Memory(bytes(200))
    codes = [engine.initialize('127.0.0.1', 'P2PHANDSHAKE', 'tcp', ''), engine.get_rpc_port() > 0]
    codes += [engine.register_memory(out.at, out.size), engine.register_memory(into.at, into.size),
              engine.register_memory(out.at, out.size)]
    codes += [engine.transfer_sync_write(address, out.at, at, 200),
              engine.transfer_sync_read(address, into.at, at + 50, 100), into.bytes]
    codes += [engine.batch_transfer_sync_write(address, [out.at, out.at + 100], [at, at + 200],
                                               [10, 10]),
              engine.batch_transfer_sync_read(address, [into.at, into.at + 100], [at, at + 200],
                                              [10, 10]), into.bytes]
    codes += [engine.transfer_sync(address, out.at, at, 8, TransferOpcode.Write,
                                   TransferNotify('name', 'message'))]
    number = engine.batch_transfer_async_write(address, [out.at], [at], [100])
    codes += [number > 0, engine.get_batch_transfer_status([number])]
    codes += [engine.transfer_sync_write(address, out.at, at + (1 << 30), 100),
              engine.transfer_sync_write('127.0.0.1:1', out.at, at, 100)]
    codes += [engine.unregister_memory(out.at), engine.batch_register_memory([out.at], [out.size]),
              engine.batch_unregister_memory([out.at, into.at])]
    codes += [engine.unregister_memory(out.at), engine.register_memory(out.at, 0),
              engine.register_memory(out.at, 100), engine.register_memory(out.at + 50, 10),
              engine.batch_register_memory([into.at, out.at], [10, 10]), engine.unregister_memory(into.at),
              engine.batch_register_memory([out.at, into.at], [10])]
    codes += [engine.send_probe(address), engine.send_probe('127.0.0.1:1'), engine.send_probe('nobody'),
              engine.transfer_sync_write(address, out.at, at, 0),
              engine.batch_transfer_sync_write(address, [out.at], [at, at], [1]),
              engine.transfer_submit_write('127.0.0.1:1', out.at, at, 1),
              engine.get_first_buffer_address('127.0.0.1:1')]
    managed = engine.allocate_managed_buffer(4096)
    codes += [managed > 0, engine.write_bytes_to_buffer(managed, 'hello', 5),
              engine.read_bytes_from_buffer(managed, 5), engine.free_managed_buffer(managed, 4096)]
    return codes


def offer():
    """The peer: offers memory, says where, and waits for the end of its input."""
    from mooncake.engine import TransferEngine
    engine, memory = TransferEngine(), Memory(bytes(4096))
    engine.initialize('127.0.0.1', 'P2PHANDSHAKE', 'tcp', '')
    engine.register_memory(memory.at, memory.size)
    print(f'offers 127.0.0.1:{engine.get_rpc_port()} {memory.at}', flush=True)
    sys.stdin.read()
    print('notified', [(n.name, n.msg) for n in engine.get_notifies()], flush=True)


def with_peer():
    peer = subprocess.Popen([sys.executable, __file__, 'offer'], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)
    line = peer.stdout.readline().split()
    while line[:1] != ['offers']:
        line = peer.stdout.readline().split()
    answers = transfers((line[1], int(line[2])))
    rest = peer.communicate(timeout=60)[0]
    return answers + [line for line in rest.splitlines() if line.startswith('notified')]


def main():
    if sys.argv[1] == 'offer':
        return offer()
    s, code = setup(sys.argv[1])
    print(json.dumps({'setup': code}), flush=True)
    for work in STEPS:
        try:
            answer = plain(work(s))
        except Exception as e:
            answer = f'{type(e).__name__}: {e}'
        print(json.dumps({work.__name__: answer}), flush=True)
    print(json.dumps({'transfers': plain(with_peer())}), flush=True)
    os._exit(0)  # what the real package does at the end of a process is not looked at


main()
