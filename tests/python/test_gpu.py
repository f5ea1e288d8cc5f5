"""Tensors that torch allocated on a GPU, between two processes: skipped where there is none."""
import subprocess
import sys

import mc
import pytest

try:
    import torch
except ImportError:
    torch = None
pytestmark = pytest.mark.skipif(torch is None or not torch.cuda.is_available(),
                                reason='wants torch and a GPU that it can use')

OTHER = """
import sys, torch, mc
address, offset, back, size = sys.argv[1], *map(int, sys.argv[2:])
with mc.Engine('py-gpu-other') as engine:
    mine = torch.zeros(size + 512, dtype=torch.uint8, device='cuda:0')[512:]
    torch.cuda.synchronize()
    peer = engine.open(address, timeout=20)
    with engine.register(mine) as memory:
        assert memory.location == 'cuda:0', memory.location
        peer.read(memory, offset, timeout=60)
        mine += 1
        torch.cuda.synchronize()
        peer.write(memory, back, timeout=60)
        with engine.prepare() as layer:  # blocks of 64 KiB, the last first
            block = 65536
            here = list(range(0, size, block))
            layer.read_many(memory, peer, here=here, there=[offset + a for a in reversed(here)],
                            sizes=block)
            layer.run(timeout=60)
    print(int(mine.long().sum()), mine[:8].tolist())
"""


@pytest.mark.parametrize('transports', ['shm,tcp', 'tcp'])
def test_tensors_of_two_processes(transports):
    size = 48 << 20
    given = torch.randint(0, 255, (size + 3072,), dtype=torch.uint8, device='cuda:0')[3072:]
    taken = torch.zeros(size, dtype=torch.uint8, device='cuda:0')
    torch.cuda.synchronize()
    with mc.Engine('py-gpu', transports=transports) as engine:
        assert 'cuda' in mc.features()
        assert [d.location for d in engine.devices()][0] == 'cuda:0'
        assert engine.location_of(given.data_ptr()) == 'cuda:0'
        with engine.register(given, writable=False) as offered, engine.register(taken) as back:
            with pytest.raises(BufferError):
                _ = offered.view
            done = subprocess.run([sys.executable, '-c', OTHER, engine.address,
                                   str(offered.offset), str(back.offset), str(size)],
                                  capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr
            torch.cuda.synchronize()
            assert torch.equal(taken, given + 1)
            turned = given.view(-1, 65536).flip(0).reshape(-1)
            assert done.stdout.split(' ', 1)[0] == str(int(given.long().sum()))
            assert done.stdout.split(' ', 1)[1].strip() == str(turned[:8].tolist())
            host = bytearray(size)
            other = mc.Engine('py-gpu-host', transports=transports)
            other.open(engine.address, timeout=20).read(host, offered.offset, timeout=60)
            assert bytes(host) == given.cpu().numpy().tobytes()
            other.close()
        with pytest.raises(mc.Invalid):  # a tensor that is another device's, or none
            engine.register(bytearray(4096), location='cuda:0')
