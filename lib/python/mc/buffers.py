"""Where the bytes of an object lie: what puts read and gets write, without a copy.

In this order: the buffer protocol (bytes, bytearray, memoryview, array, numpy),
`__array_interface__`, DLPack of the host, `data_ptr()` with `nbytes` (torch). What is not
C-contiguous is refused with `BufferError`: copy it, or pass its pieces as a list.
"""
from __future__ import annotations

import ctypes
import re
from ctypes import (POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_ssize_t,
                    c_uint8, c_uint16, c_uint64, c_void_p, py_object)
from typing import Any, Iterable, List, NamedTuple, Optional

from ._handle import Handle

_HOST = (1, 3)  # DLPack's host memory, plain and pinned
_NAMES = re.compile(':[^:]*:')  # of fields, in the format of a buffer


class Span(NamedTuple):
    """Memory of an object. It stays where it is as long as `keep` is referenced."""

    address: int
    bytes: int
    keep: Any


class OwnMemory:
    """Memory of the library, which knows where it lies."""

    __slots__ = ()

    def span(self) -> Span:
        """Where."""
        raise NotImplementedError

    @property
    def handle(self) -> Handle:
        """Whose memory it is."""
        raise NotImplementedError

    def of_host(self) -> None:
        """`BufferError` where the host cannot read and write it."""


class _View(Structure):
    _fields_ = [('buf', c_void_p), ('obj', c_void_p), ('len', c_ssize_t), ('itemsize', c_ssize_t),
                ('readonly', c_int), ('ndim', c_int), ('format', c_char_p), ('shape', c_void_p),
                ('strides', c_void_p), ('suboffsets', c_void_p), ('internal', c_void_p)]


class _Tensor(Structure):
    _fields_ = [('data', c_void_p), ('device_type', c_int32), ('device_id', c_int32),
                ('ndim', c_int32), ('code', c_uint8), ('bits', c_uint8), ('lanes', c_uint16),
                ('shape', POINTER(c_int64)), ('strides', POINTER(c_int64)),
                ('byte_offset', c_uint64)]


_api = ctypes.pythonapi
_api.PyObject_GetBuffer.argtypes = [py_object, POINTER(_View), c_int]
_api.PyObject_GetBuffer.restype = c_int
_api.PyBuffer_Release.argtypes = [POINTER(_View)]
_api.PyBuffer_Release.restype = None
_api.PyCapsule_GetPointer.argtypes = [py_object, c_char_p]
_api.PyCapsule_GetPointer.restype = c_void_p
_api.PyBytes_FromStringAndSize.argtypes = [c_char_p, c_ssize_t]
_api.PyBytes_FromStringAndSize.restype = py_object
_api.PyBytes_AsString.argtypes = [py_object]
_api.PyBytes_AsString.restype = c_void_p


def _address(view: memoryview) -> int:
    found = _View()
    _api.PyObject_GetBuffer(view, found, 0)
    address = found.buf
    _api.PyBuffer_Release(found)
    return address or 0


def fresh_bytes(size: int) -> tuple[bytes, int]:
    """An object of type bytes whose content is not set yet, and its address: to be filled once."""
    value = _api.PyBytes_FromStringAndSize(None, size)
    return value, _api.PyBytes_AsString(value)


def fresh_span(size: int) -> tuple[bytes, Span]:
    """The same, as a span to be written to."""
    value, address = fresh_bytes(size)
    return value, Span(address, size, value)


def span(thing: Any, writable: bool = False, anywhere: bool = False) -> Span:
    """The memory of `thing`; `writable` refuses what must not be written to, and memory of devices
    and files is refused unless `anywhere`."""
    if type(thing) is Span:
        return thing
    if isinstance(thing, OwnMemory):
        if not anywhere:
            thing.of_host()
        return thing.span()
    if type(thing) is bytes and not writable:  # the common put
        return Span(_api.PyBytes_AsString(thing), len(thing), thing)
    try:
        view = memoryview(thing)  # as long as it is there, the object is neither moved nor resized
    except TypeError:
        return _without_protocol(thing, writable)
    if not view.c_contiguous:
        _refuse_strides(thing)
    if writable and view.readonly:
        raise BufferError(f'{_name(thing)} is read-only')
    if 'O' in view.format and 'O' in _NAMES.sub('', view.format):
        _refuse_objects(thing)
    return Span(_address(view), view.nbytes, view)


def owned(found: Iterable[Span]) -> List[Handle]:
    """The library's memory among them, which must not be freed while it is used."""
    return [s.keep.handle for s in found if isinstance(s.keep, OwnMemory)]


def spans(value: Any, writable: bool = False) -> list[Span]:
    """The memory of a value: one object, or a list or tuple of them, one after another."""
    if isinstance(value, (list, tuple)) and type(value) is not Span:
        return [span(part, writable) for part in value]
    return [span(value, writable)]


def _name(thing: Any) -> str:
    return type(thing).__name__


def _without_protocol(thing: Any, writable: bool) -> Span:
    interface = getattr(thing, '__array_interface__', None)
    if interface is not None:
        return _of_interface(thing, interface, writable)
    if hasattr(thing, '__dlpack__') and hasattr(thing, '__dlpack_device__'):
        found = _of_dlpack(thing)
        if found is not None:
            return found
    if hasattr(thing, 'data_ptr') and hasattr(thing, 'nbytes'):
        return _of_pointer(thing)
    raise TypeError(f'{_name(thing)} has no memory that can be used: give bytes, a buffer, an '
                    'array or a tensor of the host')


def device_span(thing: Any, writable: bool = False) -> Optional[Span]:
    """Memory of a GPU: of a tensor of torch, or as its `__cuda_array_interface__` says (cupy,
    numba, jax). None: the object has no such memory."""
    if getattr(thing, 'is_cuda', False) is True and hasattr(thing, 'data_ptr'):
        if not thing.is_contiguous():  # of any type, and with gradients
            _refuse_strides(thing)
        return Span(thing.data_ptr(), thing.nbytes, thing)
    try:
        interface = thing.__cuda_array_interface__
    except Exception:  # libraries raise errors of their own
        return None
    return _of_interface(thing, interface, writable)


def _contiguous(shape: Any, strides: Any, item: int) -> bool:
    step = item
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _refuse_strides(thing: Any) -> None:
    raise BufferError(f'{_name(thing)} is not C-contiguous: copy it, or pass its pieces as a list')


def _refuse_objects(thing: Any) -> None:
    raise BufferError(f'{_name(thing)} has references to objects, not their bytes')


def _of_interface(thing: Any, interface: dict[str, Any], writable: bool) -> Span:
    address, readonly = interface['data']
    if interface['typestr'][1:2] == 'O':
        _refuse_objects(thing)
    if writable and readonly:
        raise BufferError(f'{_name(thing)} is read-only')
    item = int(interface['typestr'][2:])
    strides = interface.get('strides')
    if strides is not None and not _contiguous(interface['shape'], strides, item):
        _refuse_strides(thing)
    for size in interface['shape']:
        item *= size
    return Span(address, item, thing)


def _of_dlpack(thing: Any) -> Optional[Span]:
    """None when the object does not give itself away, as a tensor that has gradients."""
    if thing.__dlpack_device__()[0] not in _HOST:
        raise BufferError(f'{_name(thing)} is not memory of the host')
    try:
        capsule = thing.__dlpack__()
    except (BufferError, RuntimeError, TypeError):
        return None
    tensor = _Tensor.from_address(_api.PyCapsule_GetPointer(capsule, b'dltensor'))
    shape = tensor.shape[:tensor.ndim]
    # The capsule is kept under its name, so that it gives the tensor back when it is collected.
    if tensor.strides and not _contiguous(shape, tensor.strides[:tensor.ndim], 1):
        _refuse_strides(thing)
    items = 1
    for size in shape:
        items *= size
    size = items * ((tensor.bits * tensor.lanes + 7) // 8)
    return Span((tensor.data or 0) + tensor.byte_offset, size, (capsule, thing))


def _of_pointer(thing: Any) -> Span:
    contiguous = getattr(thing, 'is_contiguous', None)
    if contiguous is not None and not contiguous():
        _refuse_strides(thing)
    device = str(getattr(thing, 'device', 'cpu'))
    if not device.startswith('cpu'):
        raise BufferError(f'{_name(thing)} is memory of {device}, not of the host')
    return Span(thing.data_ptr(), thing.nbytes, thing)
