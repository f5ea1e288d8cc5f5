"""Tensors as values: a header of 64 bytes of ours, then the bytes. torch is imported on first use.

The bytes are not those that Mooncake writes: a pool is read by the package that wrote it.
"""
from __future__ import annotations

import ctypes
import struct
from typing import Any, List, Optional, Sequence, Union

from ...buffers import Span
from . import codes
from .config import ReplicateConfig

_HEADER = struct.Struct('<8sHH4x6Q')
_MAGIC = b'mctensor'
_DIMENSIONS = 6
_TYPES = ('float32', 'float64', 'float16', 'bfloat16', 'int8', 'int16', 'int32', 'int64', 'uint8',
          'bool', 'complex64', 'complex128', 'float8_e4m3fn', 'float8_e5m2')


def header_of(tensor: Any) -> bytes:
    """Type and shape. Raises ValueError for what it cannot say."""
    name = str(tensor.dtype).rpartition('.')[2]
    if name not in _TYPES or tensor.dim() > _DIMENSIONS:
        raise ValueError(f'a tensor of {name} with {tensor.dim()} dimensions')
    shape = [*tensor.shape, *[0] * (_DIMENSIONS - tensor.dim())]
    return _HEADER.pack(_MAGIC, _TYPES.index(name), tensor.dim(), *shape)


def tensor_of(value: Union[bytes, bytearray, memoryview]) -> Optional[Any]:
    """The tensor of a value, over its memory; None when it is none."""
    import torch  # type: ignore[import-not-found, unused-ignore]
    if len(value) < _HEADER.size:
        return None
    magic, kind, dimensions, *shape = _HEADER.unpack_from(value)
    if magic != _MAGIC or kind >= len(_TYPES) or dimensions > _DIMENSIONS:
        return None
    shape = shape[:dimensions]
    dtype = getattr(torch, _TYPES[kind])
    items = 1
    for size in shape:
        items *= size
    if items * torch.empty((), dtype=dtype).element_size() != len(value) - _HEADER.size:
        return None
    if items == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(value, dtype=dtype, offset=_HEADER.size).reshape(shape)


class Tensors:
    """The methods that move tensors, over those that move bytes."""

    def _put_tensor(self, key: str, tensor: Any, config: Optional[ReplicateConfig],
                    replace: bool) -> int:
        try:
            head = header_of(tensor)
        except (AttributeError, ValueError):
            return codes.INVALID
        data = tensor.detach().contiguous().cpu()
        body = Span(data.data_ptr(), data.numel() * data.element_size(), data)
        call = getattr(self, 'upsert_parts' if replace else 'put_parts')
        code: int = call(key, head, body, config=config)
        return code

    def put_tensor(self, key: str, tensor: Any) -> int:
        """0, or a code."""
        return self._put_tensor(key, tensor, None, False)

    def pub_tensor(self, key: str, tensor: Any, config: Optional[ReplicateConfig] = None) -> int:
        """As put_tensor, with a config."""
        return self._put_tensor(key, tensor, config, False)

    def upsert_tensor(self, key: str, tensor: Any) -> int:
        """As put_tensor; what is there is replaced."""
        return self._put_tensor(key, tensor, None, True)

    def upsert_pub_tensor(self, key: str, tensor: Any,
                          config: Optional[ReplicateConfig] = None) -> int:
        """As pub_tensor; what is there is replaced."""
        return self._put_tensor(key, tensor, config, True)

    def batch_put_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any]) -> List[int]:
        """A code for each."""
        return [self.put_tensor(*pair) for pair in zip(keys, tensors_list)]

    def batch_pub_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any],
                         config: Optional[ReplicateConfig] = None) -> List[int]:
        """A code for each."""
        return [self.pub_tensor(key, tensor, config) for key, tensor in zip(keys, tensors_list)]

    def batch_upsert_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any]) -> List[int]:
        """A code for each."""
        return [self.upsert_tensor(*pair) for pair in zip(keys, tensors_list)]

    def batch_upsert_pub_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any],
                                config: Optional[ReplicateConfig] = None) -> List[int]:
        """A code for each."""
        return [self.upsert_pub_tensor(key, one, config) for key, one in zip(keys, tensors_list)]

    def get_tensor(self, key: str) -> Optional[Any]:
        """The tensor, or None."""
        handle = getattr(self, 'get_buffer')(key)
        return None if handle is None else tensor_of(handle)

    def batch_get_tensor(self, keys: Sequence[str]) -> List[Optional[Any]]:
        """For each the tensor, or None."""
        return [self.get_tensor(key) for key in keys]

    def get_tensor_into(self, key: str, buffer_ptr: int, size: int) -> Optional[Any]:
        """The tensor, over the caller's memory, or None."""
        moved = getattr(self, 'get_into')(key, buffer_ptr, size)
        if moved < 0:
            return None
        return tensor_of(memoryview((ctypes.c_char * moved).from_address(buffer_ptr)).cast('B'))

    def batch_get_tensor_into(self, keys: Sequence[str], buffer_ptrs: Sequence[int],
                              sizes: Sequence[int]) -> List[Optional[Any]]:
        """For each the tensor, over the caller's memory, or None."""
        return [self.get_tensor_into(*three) for three in zip(keys, buffer_ptrs, sizes)]

    def put_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """From memory that holds header and bytes, as get_tensor_into leaves them."""
        code: int = getattr(self, 'put_from')(key, buffer_ptr, size)
        return code

    def upsert_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """As put_tensor_from; what is there is replaced."""
        code: int = getattr(self, 'upsert_from')(key, buffer_ptr, size)
        return code

    def batch_put_tensor_from(self, keys: Sequence[str], buffer_ptrs: Sequence[int],
                              sizes: Sequence[int]) -> List[int]:
        """A code for each."""
        return [self.put_tensor_from(*three) for three in zip(keys, buffer_ptrs, sizes)]

    def batch_upsert_tensor_from(self, keys: Sequence[str], buffer_ptrs: Sequence[int],
                                 sizes: Sequence[int]) -> List[int]:
        """A code for each."""
        return [self.upsert_tensor_from(*three) for three in zip(keys, buffer_ptrs, sizes)]
