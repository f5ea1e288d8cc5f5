import struct
from dataclasses import dataclass

FORMAT = '<iiii'


@dataclass
class RemoteMetadata:
    """A header of our own: length, format, and one dimension and type."""

    length: int
    shapes: list
    dtypes: list
    fmt: int

    def serialize(self):
        return struct.pack(FORMAT, self.length, self.fmt, self.shapes[0][0], self.dtypes[0])

    @staticmethod
    def deserialize(data):
        length, fmt, size, dtype = struct.unpack_from(FORMAT, data)
        return RemoteMetadata(length, [(size,)], [dtype], fmt)
