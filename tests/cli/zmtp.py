"""Frames of ZMTP 3.0 without security, written by hand as a client of others would."""
import struct


def read(s, n):
    data = b''
    while len(data) < n:
        more = s.recv(n - len(data))
        if not more:
            raise EOFError('the connection was closed')
        data += more
    return data


def frame(body, flags=0):
    return struct.pack('>BQ', flags | 2, len(body)) + body


def message(*frames):
    return b''.join(frame(f, f is not frames[-1]) for f in frames)


def receive(s):
    frames = []
    while True:
        flags = read(s, 1)[0]
        n = struct.unpack('>Q', read(s, 8))[0] if flags & 2 else read(s, 1)[0]
        body = read(s, n)
        if flags & 4:  # a command of ZeroMQ's own
            continue
        frames.append(body)
        if not flags & 1:
            return frames


def greet(s, kind):
    """The handshake of a socket of this kind: b'DEALER'."""
    s.sendall(b'\xff' + bytes(8) + b'\x7f\x03\x00' + b'NULL'.ljust(20, b'\0') + bytes(32))
    read(s, 64)
    ready = b'\x05READY\x0bSocket-Type' + struct.pack('>I', len(kind)) + kind
    s.sendall(struct.pack('BB', 4, len(ready)) + ready)
