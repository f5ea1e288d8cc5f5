"""A network between a client and a server: forwarder.py HOST:PORT prints the address to use instead.

forwarder.py HOST:PORT FROM TO joins two network namespaces, those of the processes FROM and TO: it listens at the
same address in the first and connects to it in the second.

It reads commands, a line each, and prints each one when it holds:
  pass        forwards; what was held back goes on
  delay MS    forwards everything so much later
  mute        forwards what the client sends, and nothing back
  hold        forwards nothing, not even an end of a connection; new connections are accepted and as silent
  forget      connections so far stay open and silent for ever, as those of a lost NAT entry; new ones pass
It prints `open N` when it has accepted its Nth connection.
"""
import asyncio
import ctypes
import os
import sys

CHUNK = 1 << 16


class Network:
    def __init__(self, target):
        self.target = target.rsplit(':', 1)
        self.passing = {way: asyncio.Event() for way in ('there', 'back')}
        self.pass_all()
        self.delay = 0
        self.age = 0  # connections of an earlier age are forgotten
        self.count = 0
        self.writers = []  # none is closed by the collector

    def pass_all(self):
        for event in self.passing.values():
            event.set()

    def obey(self, command, *value):
        if command in ('hold', 'mute'):
            self.passing['back'].clear()
            if command == 'hold':
                self.passing['there'].clear()
        else:
            self.age += command == 'forget'
            self.delay = int(value[0]) / 1000 if command == 'delay' else 0
            self.pass_all()

    async def may_pass(self, age, way):
        await self.passing[way].wait()
        if age != self.age:
            await asyncio.Event().wait()

    async def pump(self, reader, writer, age, way):
        try:
            while data := await reader.read(CHUNK):
                await self.may_pass(age, way)
                await asyncio.sleep(self.delay)
                await self.may_pass(age, way)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        await self.may_pass(age, way)
        writer.close()

    async def accept(self, reader, writer):
        self.count += 1
        print('open', self.count, flush=True)
        age = self.age
        await self.may_pass(age, 'there')
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.close()
            return
        self.writers += [writer, far_writer]
        await asyncio.gather(self.pump(reader, far_writer, age, 'there'), self.pump(far_reader, writer, age, 'back'))


def enter(pid):
    """Sockets are made in the network namespace of this process from now on."""
    namespace = os.open(f'/proc/{pid}/ns/net', os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(namespace, 0):
        raise OSError(ctypes.get_errno(), f'the network namespace of process {pid}')
    os.close(namespace)


async def main():
    network = Network(sys.argv[1])
    at = ['127.0.0.1', 0]
    if len(sys.argv) > 2:
        enter(sys.argv[2])
        at = network.target
    server = await asyncio.start_server(network.accept, *at)
    if len(sys.argv) > 2:
        enter(sys.argv[3])
    print('%s:%d' % server.sockets[0].getsockname(), flush=True)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := (await commands.readline()).decode():
        network.obey(*line.split())
        print(line, end='', flush=True)


asyncio.run(main())
