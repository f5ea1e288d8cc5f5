"""Memory of a worker: anonymous pages, the bytes that a seed chooses, and their comparison.

Every environment imports it, so it wants nothing but Python."""
import ctypes
import mmap
import random

TILE = 1 << 20  # the bytes of a seed repeat after this many
_libc = ctypes.CDLL(None)
_libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_tiles = {}


def tile(seed):
    """TILE bytes, and nothing else is kept of an older seed."""
    if seed not in _tiles:
        _tiles.clear()
        _tiles[seed] = random.Random(seed).randbytes(TILE)
    return _tiles[seed]


def fill(address, size, seed):
    """Writes a seed's bytes there."""
    data = tile(seed)
    for at in range(0, size, TILE):
        ctypes.memmove(address + at, data, min(TILE, size - at))


def holds(address, size, seed, begin=0):
    """Whether a seed's bytes, from `begin` on, are there."""
    data = tile(seed)
    at = 0
    while at < size:
        where = (begin + at) % TILE
        piece = min(TILE - where, size - at)
        if _libc.memcmp(address + at, data[where:where + piece], piece):
            return False
        at += piece
    return True


def zero(address, size):
    """Writes zeros there."""
    ctypes.memset(address, 0, size)


class Area:
    """Anonymous pages: `view` for those who want an object, `address` for those who want a number."""

    def __init__(self, size):
        self.size = size
        self._map = mmap.mmap(-1, size)
        self.view = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
