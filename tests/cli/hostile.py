"""Speaks to a daemon as no friend would: hostile.py ANNOUNCEMENT MESSAGE-NAME...

Control port: messages of another protocol version, of unknown types, and of every type named, with
bodies whose lengths lie: each must be answered with an error. Frames that are no messages, pages
asked for wrongly and noise on the data ports must cost the sender its connection at most. The
wire is written by hand here (ZMTP 3.0 without security, docs/wire.md), as a client of others would.
"""
import json
import random
import socket
import struct
import sys

from zmtp import greet, message, receive

SECONDS = 20  # for one answer; a daemon that hangs fails the test


def connect(address):
    host, port = address.rsplit(':', 1)
    return socket.create_connection((host, int(port)), timeout=SECONDS)


def dealer(address):
    s = connect(address)
    greet(s, b'DEALER')
    return s


def envelope(kind, version=1, ident=7):
    name = kind.encode()
    return (bytes([0x95, version, 0xd9, len(name)]) + name + bytes([ident]) +
            b'\xcd\x03\xe8' + b'\xc4\x00')


LIES = {
    'no array': b'junk',
    'no bytes': b'',
    'an array of 2^32-1': b'\xdd\xff\xff\xff\xff',
    'an array of 15 in 1 byte': b'\x9f',
    'a map': b'\x81\x01\x02',
    'a text of 2^32-1': b'\x91\xdb\xff\xff\xff\xff',
    'a blob of 2^31': b'\x91\xc6\x80\x00\x00\x00abc',
}
NESTED = b'\x91' * 4000 + b'\x90'  # where no field is wanted a new one, to be passed over


def control(address, names):
    s = dealer(address)

    def ask(what, env, body, words=()):
        s.sendall(message(env, body))
        frames = receive(s)
        if len(frames) != 2 or b'error' not in frames[0] or not all(w in frames[1] for w in words):
            sys.exit(f'{what}: answered {frames}')

    ask('version 2', envelope('echo', version=2), b'\x90', [b'unsupported', b'version 2'])
    ask('no such type', envelope('zebra'), b'\x90', [b'unsupported', b'zebra'])
    for name in names:
        for what, body in LIES.items():
            ask(f'{name} with {what}', envelope(name), body)
        s.sendall(message(envelope(name), NESTED))
        if len(receive(s)) != 2:
            sys.exit(f'{name} with lists within lists: no answer')
    noise = random.Random(1)
    for junk in ([b'x'], [b'x', b'y'], [b'', b''], [b'x', b''], [LIES['a map'], b''],
                 [envelope('echo')[:-4], b'\x90'], [envelope('echo')], [noise.randbytes(4096)] * 2):
        s.sendall(message(*junk))
    ask('after junk', envelope('zebra'), b'\x90')  # still the same connection
    # A frame longer than any message may be ends the connection, before its bytes are sent. So does
    # a message of more frames than a request has.
    for what, end in (('a frame of 2^60 bytes', struct.pack('>BQ', 2, 1 << 60)),
                      ('a message of three frames', message(b'x', b'y', b'z'))):
        s.sendall(end)
        try:
            receive(s)
            sys.exit(f'{what} was answered')
        except (EOFError, ConnectionError):
            pass
        s = dealer(address)
        ask(f'after {what}', envelope('zebra'), b'\x90')
    for _ in range(3):
        with connect(address) as other:
            other.sendall(noise.randbytes(8192))


def pages(address):
    noise = random.Random(2)
    post = b'POST /live HTTP/1.1\r\nHost: localhost\r\n'
    for what, request in {
        'noise': noise.randbytes(4096) + b'\r\n\r\n',
        'a length that is no number': post + b'Content-Length: many\r\n\r\n',
        'a negative length': post + b'Content-Length: -1\r\n\r\n',
        'a length over 2^64': post + b'Content-Length: 99999999999999999999\r\n\r\n',
        'a body of 2^60': post + b'Content-Length: 1152921504606846976\r\n\r\n',
        'a chunk over 2^64': post + b'Transfer-Encoding: chunked\r\n\r\n' + b'f' * 17 + b'\r\n',
        'a header of 1 MiB': b'GET /live HTTP/1.1\r\nX: ' + b'x' * (1 << 20) + b'\r\n\r\n',
        'an unknown page': b'GET /zebra HTTP/1.1\r\nHost: localhost\r\n\r\n',
        'a wrong method': b'DELETE /live HTTP/1.1\r\nHost: localhost\r\n\r\n',
    }.items():
        with connect(address) as s:
            try:
                s.sendall(request)
                answer = s.recv(64)
            except TimeoutError:
                sys.exit(f'{what}: neither answered nor closed')
            except ConnectionError:
                continue
            if answer and answer[9:10] != b'4':
                sys.exit(f'{what}: answered {answer}')


def data(address):
    noise = random.Random(3)
    with connect(address) as s:
        try:
            s.sendall(noise.randbytes(8192))
            while s.recv(4096):
                pass
        except ConnectionError:
            pass


def main():
    with open(sys.argv[1], encoding='utf-8') as f:
        me = json.load(f)
    for what, talk in (('control', lambda: control(me['control'], sys.argv[2:])),
                       ('pages', lambda: pages(me['http'])),
                       ('data', lambda: [data(a) for a in me['data']])):
        try:
            talk()
        except (EOFError, OSError) as e:
            sys.exit(f"{me['role']}, {what}: {e}")


main()
