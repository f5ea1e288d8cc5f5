"""lying_master.py MC-STORE: what mc-store makes of a master whose answers are wrong, each in its way.

The wire is written by hand (docs/wire.md), as tests/cli/hostile.py does: a ROUTER without security."""
import resource
import socket
import struct
import subprocess
import sys
import threading

from zmtp import greet, message, receive

SECONDS = 60
MiB = 1 << 20


def pack(v):
    """MessagePack of what these answers hold."""
    if isinstance(v, bool):
        return b'\xc3' if v else b'\xc2'
    if isinstance(v, int):
        return b'\xcf' + struct.pack('>Q', v)
    if isinstance(v, bytes):
        return b'\xc4' + bytes([len(v)]) + v
    if isinstance(v, str):
        return b'\xda' + struct.pack('>H', len(v.encode())) + v.encode()
    return b'\xdc' + struct.pack('>H', len(v)) + b''.join(pack(e) for e in v)


def request(envelope):
    """The type and the id of a call."""
    assert envelope[0] == 0x95, envelope
    at = 2
    n = envelope[at] & 0x1f
    kind = envelope[at + 1:at + 1 + n].decode()
    at += 1 + n
    width = {0xcc: 1, 0xcd: 2, 0xce: 4, 0xcf: 8}.get(envelope[at])
    return kind, int.from_bytes(envelope[at + 1:at + 1 + width], 'big') if width else envelope[at]


def serve(connection, answer):
    try:
        greet(connection, b'ROUTER')
        while True:
            kind, ident = request(receive(connection)[0])
            name, body = answer(kind)
            connection.sendall(message(pack([1, name, ident, 0, b'']), pack(body)))
    except (EOFError, OSError):
        pass


def accept(listener, answer):
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection, answer), daemon=True).start()


def ask(answer, *words, given=None):
    """mc-store beside such a master: its status and what it wrote."""
    listener = socket.create_server(('127.0.0.1', 0), backlog=16)
    threading.Thread(target=accept, args=(listener, answer), daemon=True).start()
    address = '127.0.0.1:%d' % listener.getsockname()[1]
    done = subprocess.run([sys.argv[1], *words, '--master', address, '--timeout', '2s'], input=given,
                          capture_output=True, timeout=SECONDS)
    return done.returncode, done.stdout, done.stderr


def expect(what, got, status, text):
    if got[0] != status or text not in got[2]:
        sys.exit(f'{what}: status {got[0]}, want {status} and {text}: {got[1][-200:]} {got[2]}')


node = ['n', '127.0.0.1:1', 5]
one = ['same', 1, 1, 1, 1, False]
expect('a listing without end', ask(lambda kind: ('ok', [1, [one] * 10, True, 0]), 'ls'), 4, b'does not go on')
expect('a grant of no place', ask(lambda kind: ('ok', [1, [node], [[[], 9, []]]]) if kind == 'put-start' else ('ok', [1, [[]]]),
                                  'put', 'k', given=b'value'), 4, b'without a place')
expect('words that are commands to a terminal', ask(lambda kind: ('error', [1, 'invalid', '\x1b[2Jgone']), 'stat'), 2,
       b'?[2Jgone')
# Nobody sends a byte of a value of 1 GiB.
large = [[], 1024 * MiB, 1, 9, [[0, 0]], [], 1]
expect('a size that is not true', ask(lambda kind: ('ok', [1, 1000, [node], [large]]), 'get', 'k'), 3, b'no answer')
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
if peak > 512:
    sys.exit(f'mc-store took {peak:.0f} MiB for a value, and nothing of it came')
