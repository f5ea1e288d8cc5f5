"""Holds connections to a data port that never get to the end of their hello, as no friend would.

data_port.py ADDRESS COUNT: opens them, sends one byte over each, says `open`, and another byte over
each that is still there every 1.5 s, until its standard input ends.
"""
import resource
import select
import socket
import sys


def connect(address):
    host, port = address.rsplit(':', 1)
    return socket.create_connection((host, int(port)), timeout=60)


def say(connections, byte):
    for s in connections:
        try:
            s.send(byte)
        except OSError:
            pass  # it was closed, as it should be


def main():
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(files, 4096), files))
    connections = []
    for _ in range(int(sys.argv[2])):
        connections.append(connect(sys.argv[1]))
        say(connections[-1:], b'M')
    print('open', flush=True)
    while not select.select([sys.stdin], [], [], 1.5)[0]:
        say(connections, b'C')


main()
