"""What unknown peers do to a control port: control_port.py more|half ADDRESS.

more: one message of frames of 1 MiB without end, until its connection is closed. half: opens 1,102
connections, says one byte of a greeting over each and then `open`, and leaves when its standard
input ends.
"""
import resource
import socket
import struct
import sys

MESSAGE_MIB = 1200


def connect(address):
    host, port = address.rsplit(':', 1)
    return socket.create_connection((host, int(port)), timeout=60)


def read(s, n):
    data = b''
    while len(data) < n:
        some = s.recv(n - len(data))
        if not some:
            sys.exit('the connection was closed')
        data += some
    return data


def more(address):
    s = connect(address)
    ready = b'\x05READY\x0bSocket-Type' + struct.pack('>I', 6) + b'DEALER'
    s.sendall(b'\xff' + bytes(8) + b'\x7f\x03\x00' + b'NULL'.ljust(20, b'\0') + bytes(32) +
              struct.pack('BB', 4, len(ready)) + ready)
    read(s, read(s, 66)[65])
    frame = struct.pack('>BQ', 3, 1 << 20) + bytes(1 << 20)
    try:
        for _ in range(MESSAGE_MIB):
            s.sendall(frame)
    except ConnectionError:
        return
    sys.exit(f'{MESSAGE_MIB} MiB of one message were taken')


def half(address):
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(files, 4096), files))
    connections = []
    for _ in range(1102):
        connections.append(connect(address))
        connections[-1].send(b'\xff')
    print('open', flush=True)
    sys.stdin.read()


{'more': more, 'half': half}[sys.argv[1]](sys.argv[2])
