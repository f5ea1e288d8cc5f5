"""A network between a client and a server: forwarder.py HOST:PORT prints the address to use instead.

It reads commands, a line each, and prints each one when it holds:
  pass        forwards; what was held back goes on
  delay MS    forwards everything so much later
  hold        forwards nothing, not even an end of a connection; new connections are accepted and as silent
  forget      connections so far stay open and silent for ever, as those of a lost NAT entry; new ones pass
It prints `open N` when it has accepted its Nth connection.
"""
import asyncio
import sys

CHUNK = 1 << 16


class Network:
    def __init__(self, target):
        self.target = target.rsplit(':', 1)
        self.passing = asyncio.Event()
        self.passing.set()
        self.delay = 0
        self.age = 0  # connections of an earlier age are forgotten
        self.count = 0
        self.writers = []  # none is closed by the collector

    def obey(self, command, *value):
        if command == 'hold':
            self.passing.clear()
        else:
            self.age += command == 'forget'
            self.delay = int(value[0]) / 1000 if command == 'delay' else 0
            self.passing.set()

    async def may_pass(self, age):
        await self.passing.wait()
        if age != self.age:
            await asyncio.Event().wait()

    async def pump(self, reader, writer, age):
        try:
            while data := await reader.read(CHUNK):
                await self.may_pass(age)
                await asyncio.sleep(self.delay)
                await self.may_pass(age)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        await self.may_pass(age)
        writer.close()

    async def accept(self, reader, writer):
        self.count += 1
        print('open', self.count, flush=True)
        age = self.age
        await self.may_pass(age)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.close()
            return
        self.writers += [writer, far_writer]
        await asyncio.gather(self.pump(reader, far_writer, age), self.pump(far_reader, writer, age))


async def main():
    network = Network(sys.argv[1])
    server = await asyncio.start_server(network.accept, '127.0.0.1', 0)
    print('%s:%d' % server.sockets[0].getsockname(), flush=True)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := (await commands.readline()).decode():
        network.obey(*line.split())
        print(line, end='', flush=True)


asyncio.run(main())
