"""The C interface, declared for ctypes: mc/transfer.h and mc/store.h, no more and no less.

tests/python/test_abi.py compares this file with the headers. The library is $MC_LIBRARY, else the
libmc.so beside this file (as in the wheel), else what the loader finds.
"""
from __future__ import annotations

import ctypes
import os
import pathlib
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_int, c_size_t, c_uint,
                    c_uint32, c_uint64, c_void_p)
from typing import Any

from .errors import error

CODE = c_uint
HANDLE = c_void_p
OUT = POINTER(c_void_p)
TEXT = c_char_p  # ends with NUL
BYTES = c_void_p  # an address, or an object of type bytes


class mc_request(Structure):
    _fields_ = [('op', c_uint32), ('priority', c_uint32), ('segment', c_uint32),
                ('timeout_ms', c_uint32), ('local', c_void_p), ('offset', c_uint64),
                ('bytes', c_uint64), ('rows', c_uint64), ('local_stride', c_uint64),
                ('remote_stride', c_uint64), ('reserved', c_uint64 * 4)]


class mc_status(Structure):
    _fields_ = [('state', c_uint32), ('code', c_uint32), ('bytes_done', c_uint64)]


class mc_key(Structure):
    _fields_ = [('data', c_void_p), ('bytes', c_size_t)]


class mc_buffer(Structure):
    _fields_ = [('data', c_void_p), ('bytes', c_size_t)]


class mc_item(Structure):
    _fields_ = [('key', mc_key), ('buffers', c_void_p), ('buffer_count', c_size_t),
                ('options', c_void_p), ('reserved', c_uint64)]


class mc_done(Structure):
    _fields_ = [('tag', c_uint64), ('code', c_uint32), ('failed', c_uint32), ('bytes', c_uint64)]


class mc_put_options(Structure):
    _fields_ = [('size', c_uint32), ('replicas', c_uint32), ('cls', c_uint32), ('pin', c_uint32),
                ('ttl_ms', c_uint64), ('prefer', c_char_p), ('group', c_char_p),
                ('tenant', c_char_p), ('flags', c_uint32)]


class mc_put_result(Structure):
    _fields_ = [('code', c_uint32), ('outcome', c_uint32), ('bytes', c_uint64)]


class mc_get_result(Structure):
    _fields_ = [('code', c_uint32), ('flags', c_uint32), ('bytes', c_uint64)]


class mc_keys(Structure):
    _fields_ = [('bytes', c_char_p), ('ends', c_void_p), ('count', c_size_t)]


class mc_place(Structure):
    _fields_ = [('size', c_uint32), ('tier', c_uint32), ('node', c_char * 64), ('bytes', c_uint64)]


class mc_device(Structure):
    _fields_ = [('size', c_uint32), ('location', c_char * 32), ('pci', c_char * 16),
                ('bytes', c_uint64)]


class mc_lend_options(Structure):
    _fields_ = [('size', c_uint32), ('numa', c_uint32), ('bytes', c_uint64), ('memory', c_void_p),
                ('host', c_char_p), ('domain', c_char_p), ('drain_ms', c_uint32)]


class mc_notice(Structure):
    _fields_ = [('size', c_uint32), ('from', c_char_p), ('name', c_char_p), ('data', c_void_p),
                ('bytes', c_size_t)]


class mc_piece(Structure):
    _fields_ = [('data', c_void_p), ('offset', c_uint64), ('bytes', c_uint64), ('rows', c_uint64),
                ('local_stride', c_uint64), ('value_stride', c_uint64)]


class mc_range_item(Structure):
    _fields_ = [('key', mc_key), ('pieces', c_void_p), ('piece_count', c_size_t)]


class mc_kv_region(Structure):
    _fields_ = [('size', c_uint32), ('rows', c_uint32), ('base', c_void_p),
                ('block_stride', c_uint64), ('bytes', c_uint64), ('row_stride', c_uint64)]


class mc_kv_blocks(Structure):
    _fields_ = [('size', c_uint32), ('hash_bytes', c_uint32), ('prefix', c_char_p),
                ('prefix_bytes', c_size_t), ('hashes', c_void_p), ('blocks', c_void_p),
                ('parents', c_void_p), ('count', c_size_t), ('first_region', c_uint32),
                ('region_count', c_uint32)]


mc_each_progress = CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint64)


class mc_log_line(Structure):
    _fields_ = [('size', c_uint32), ('level', c_uint32), ('area', c_char_p), ('text', c_char_p)]


class mc_call_options(Structure):
    _fields_ = [('size', c_uint32), ('timeout_ms', c_uint32), ('progress', mc_each_progress),
                ('user', c_void_p)]


STRUCTURES = (mc_request, mc_status, mc_key, mc_buffer, mc_item, mc_done, mc_put_options,
              mc_put_result, mc_get_result, mc_keys, mc_place, mc_device, mc_lend_options,
              mc_kv_region, mc_kv_blocks, mc_notice, mc_piece, mc_range_item, mc_log_line,
              mc_call_options)

mc_each = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_uint64)
mc_each_line = CFUNCTYPE(None, c_void_p, POINTER(mc_log_line))
mc_each_done = CFUNCTYPE(None, c_void_p, POINTER(mc_done))
mc_each_notice = CFUNCTYPE(c_int, c_void_p, POINTER(mc_notice))

CONSTANTS = {
    'MC_OK': 0, 'MC_INVALID': 1, 'MC_NOT_FOUND': 2, 'MC_EXISTS': 3, 'MC_NO_SPACE': 4, 'MC_BUSY': 5,
    'MC_TIMEOUT': 6, 'MC_UNAVAILABLE': 7, 'MC_STALE': 8, 'MC_CORRUPT': 9, 'MC_DENIED': 10,
    'MC_UNSUPPORTED': 11, 'MC_INTERNAL': 12,
    'MC_WRITABLE': 1, 'MC_READ': 0, 'MC_WRITE': 1,
    'MC_PRIORITY_MEDIUM': 0, 'MC_PRIORITY_HIGH': 1, 'MC_PRIORITY_LOW': 2,
    'MC_STATE_WAITING': 0, 'MC_STATE_PENDING': 1, 'MC_STATE_COMPLETED': 2, 'MC_STATE_FAILED': 3,
    'MC_STATE_TIMED_OUT': 4, 'MC_STATE_CANCELLED': 5,
    'MC_FEATURE_ADDRESSES': 1, 'MC_FEATURE_LEND': 2, 'MC_FEATURE_RANGES': 4, 'MC_FEATURE_QUEUE': 8,
    'MC_FEATURE_NOTICES': 16, 'MC_FEATURE_BLOCKS': 32, 'MC_FEATURE_CUDA': 64,
    'MC_FEATURE_RDMA': 128, 'MC_FEATURE_PARTS': 256, 'MC_FEATURE_PREPARED': 512,
    'MC_CLASS_NORMAL': 1, 'MC_CLASS_EPHEMERAL': 2, 'MC_CLASS_CONTEXT': 3,
    'MC_PIN_NONE': 1, 'MC_PIN_SOFT': 2, 'MC_PIN_HARD': 3,
    'MC_PUT_PREFER_LOCAL': 1, 'MC_PUT_REPLACE': 2,
    'MC_PUT_STORED': 0, 'MC_PUT_EXISTED': 1, 'MC_PUT_NOT_ADMITTED': 2, 'MC_GET_VERIFIED': 1,
    'MC_TIER_MEMORY': 0, 'MC_TIER_DISK': 1,
    'MC_LOG_ERROR': 0, 'MC_LOG_WARN': 1, 'MC_LOG_INFO': 2, 'MC_LOG_DEBUG': 3,
}

# name: (result, parameters). What returns CODE raises when that is not MC_OK.
FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    'mc_version': (TEXT, ()),
    'mc_code_name': (TEXT, (CODE,)),
    'mc_last_error': (TEXT, ()),
    'mc_log_keep': (None, (c_int,)),
    'mc_log_take': (c_size_t, (c_uint, mc_each_line, c_void_p)),
    'mc_call_with': (CODE, (POINTER(mc_call_options),)),
    'mc_options_new': (CODE, (OUT,)),
    'mc_options_set': (CODE, (HANDLE, TEXT, TEXT)),
    'mc_options_free': (None, (HANDLE,)),
    'mc_engine_open': (CODE, (TEXT, HANDLE, OUT)),
    'mc_engine_address': (TEXT, (HANDLE,)),
    'mc_engine_close': (None, (HANDLE,)),
    'mc_memory_allocate': (CODE, (HANDLE, c_size_t, c_uint, OUT)),
    'mc_memory_allocate_at': (CODE, (HANDLE, c_size_t, TEXT, c_uint, OUT)),
    'mc_memory_register_file': (CODE, (HANDLE, TEXT, c_uint64, c_uint, OUT)),
    'mc_devices': (c_size_t, (HANDLE, POINTER(mc_device), c_size_t)),
    'mc_memory_kind': (CODE, (HANDLE, c_void_p, c_void_p)),
    'mc_memory_register': (CODE, (HANDLE, c_void_p, c_size_t, TEXT, c_uint, OUT)),
    'mc_memory_data': (c_void_p, (HANDLE,)),
    'mc_memory_bytes': (c_size_t, (HANDLE,)),
    'mc_memory_offset': (c_uint64, (HANDLE,)),
    'mc_memory_free': (None, (HANDLE,)),
    'mc_segment_open': (CODE, (HANDLE, TEXT, c_uint, POINTER(c_uint32))),
    'mc_segment_bytes': (CODE, (HANDLE, c_uint32, POINTER(c_uint64))),
    'mc_segment_close': (None, (HANDLE, c_uint32)),
    'mc_transfer': (CODE, (HANDLE, c_void_p, c_uint)),
    'mc_batch_allocate': (c_uint64, (HANDLE,)),
    'mc_batch_submit': (CODE, (HANDLE, c_uint64, c_void_p, c_size_t)),
    'mc_batch_status': (CODE, (HANDLE, c_uint64, c_size_t, POINTER(mc_status))),
    'mc_batch_wait': (CODE, (HANDLE, c_uint64, c_uint)),
    'mc_batch_cancel': (None, (HANDLE, c_uint64)),
    'mc_batch_free': (None, (HANDLE, c_uint64)),
    'mc_store_setup': (CODE, (TEXT, TEXT, HANDLE, OUT)),
    'mc_store_close': (None, (HANDLE,)),
    'mc_store_engine': (HANDLE, (HANDLE,)),
    'mc_store_register_buffer': (CODE, (HANDLE, c_void_p, c_size_t, OUT)),
    'mc_store_put': (CODE, (HANDLE, BYTES, c_size_t, BYTES, c_size_t)),
    'mc_store_get': (CODE, (HANDLE, BYTES, c_size_t, c_void_p, c_size_t, POINTER(c_size_t))),
    'mc_store_size': (CODE, (HANDLE, BYTES, c_size_t, POINTER(c_size_t))),
    'mc_store_exists': (CODE, (HANDLE, BYTES, c_size_t, POINTER(c_int))),
    'mc_store_remove': (CODE, (HANDLE, BYTES, c_size_t, c_int)),
    'mc_store_put_batch': (CODE, (HANDLE, c_void_p, c_size_t, c_void_p)),
    'mc_store_get_batch': (CODE, (HANDLE, c_void_p, c_size_t, c_uint, c_void_p, c_void_p)),
    'mc_store_exists_batch': (CODE, (HANDLE, c_void_p, c_size_t, c_void_p)),
    'mc_store_match_prefix': (CODE, (HANDLE, c_void_p, c_size_t, POINTER(c_size_t))),
    'mc_store_remove_batch': (CODE, (HANDLE, c_void_p, c_size_t, c_int, c_void_p)),
    'mc_abi_version': (c_uint32, ()),
    'mc_features': (c_uint64, ()),
    'mc_queue_open': (CODE, (HANDLE, c_uint32, c_uint32, OUT)),
    'mc_queue_fd': (c_int, (HANDLE,)),
    'mc_queue_take': (c_size_t, (HANDLE, POINTER(mc_done), c_size_t)),
    'mc_queue_wait': (CODE, (HANDLE, c_uint)),
    'mc_queue_cancel': (CODE, (HANDLE, c_uint64)),
    'mc_queue_drive': (c_size_t, (HANDLE, c_uint, mc_each_done, c_void_p)),
    'mc_queue_close': (None, (HANDLE,)),
    'mc_batch_submit_queue': (CODE, (HANDLE, c_uint64, c_void_p, c_size_t, HANDLE, c_uint64)),
    'mc_prepared_new': (CODE, (HANDLE, c_void_p, c_size_t, OUT)),
    'mc_prepared_run': (CODE, (HANDLE, c_uint)),
    'mc_prepared_submit': (CODE, (HANDLE, c_uint64, c_uint, HANDLE, c_uint64)),
    'mc_prepared_free': (None, (HANDLE,)),
    'mc_segment_offset': (CODE, (HANDLE, c_uint32, c_uint64, c_uint64, POINTER(c_uint64))),
    'mc_notify': (CODE, (HANDLE, c_uint32, TEXT, BYTES, c_size_t, c_uint)),
    'mc_batch_submit_notify': (CODE, (HANDLE, c_uint64, c_void_p, c_size_t, TEXT, BYTES,
                                      c_size_t)),
    'mc_notices_take': (c_size_t, (HANDLE, c_size_t, mc_each_notice, c_void_p)),
    'mc_notices_fd': (c_int, (HANDLE,)),
    'mc_store_put_items': (CODE, (HANDLE, c_void_p, c_size_t, POINTER(mc_put_options), c_void_p)),
    'mc_store_put_async': (CODE, (HANDLE, HANDLE, c_uint64, c_void_p, c_size_t,
                                  POINTER(mc_put_options), c_void_p)),
    'mc_store_get_async': (CODE, (HANDLE, HANDLE, c_uint64, c_void_p, c_size_t, c_uint, c_void_p)),
    'mc_store_exists_async': (CODE, (HANDLE, HANDLE, c_uint64, c_void_p, c_size_t, c_void_p)),
    'mc_store_put_keys': (CODE, (HANDLE, POINTER(mc_keys), c_void_p, c_void_p, HANDLE, c_uint64,
                                 POINTER(mc_put_options), c_void_p)),
    'mc_store_get_keys': (CODE, (HANDLE, POINTER(mc_keys), c_void_p, c_void_p, HANDLE, c_uint64,
                                 c_uint, c_void_p)),
    'mc_store_exists_keys': (CODE, (HANDLE, POINTER(mc_keys), HANDLE, c_uint64, c_void_p)),
    'mc_store_match_keys': (CODE, (HANDLE, POINTER(mc_keys), POINTER(c_size_t))),
    'mc_store_remove_keys': (CODE, (HANDLE, POINTER(mc_keys), c_int, c_void_p)),
    'mc_store_prefetch_keys': (CODE, (HANDLE, POINTER(mc_keys), POINTER(c_uint64))),
    'mc_store_list': (CODE, (HANDLE, BYTES, c_size_t, mc_each, c_void_p)),
    'mc_store_remove_prefix': (CODE, (HANDLE, BYTES, c_size_t, c_int, POINTER(c_uint64))),
    'mc_store_list_async': (CODE, (HANDLE, HANDLE, c_uint64, BYTES, c_size_t, mc_each, c_void_p)),
    'mc_store_remove_prefix_async': (CODE, (HANDLE, HANDLE, c_uint64, BYTES, c_size_t, c_int,
                                            POINTER(c_uint64))),
    'mc_store_locate': (CODE, (HANDLE, mc_key, POINTER(mc_place), c_size_t, POINTER(c_size_t))),
    'mc_store_health': (CODE, (HANDLE, c_uint, POINTER(c_uint32), POINTER(c_uint64))),
    'mc_store_prefetch': (CODE, (HANDLE, c_void_p, c_size_t, POINTER(c_uint64))),
    'mc_store_get_ranges': (CODE, (HANDLE, c_void_p, c_size_t, c_uint, c_void_p)),
    'mc_store_lend': (CODE, (HANDLE, POINTER(mc_lend_options), OUT)),
    'mc_lent_free': (None, (HANDLE,)),
    'mc_kv_layout_new': (CODE, (HANDLE, POINTER(mc_kv_region), c_size_t, c_uint64, OUT)),
    'mc_kv_layout_free': (None, (HANDLE,)),
    'mc_store_match_blocks': (CODE, (HANDLE, c_void_p, c_size_t, c_void_p, c_size_t, c_size_t,
                                     POINTER(c_size_t))),
    'mc_store_match_blocks_within': (CODE, (HANDLE, c_void_p, c_size_t, c_void_p, c_size_t,
                                            c_size_t, c_uint, POINTER(c_size_t))),
    'mc_store_match_blocks_async': (CODE, (HANDLE, HANDLE, c_uint64, c_void_p, c_size_t, c_void_p,
                                           c_size_t, c_size_t, POINTER(c_size_t))),
    'mc_store_size_async': (CODE, (HANDLE, HANDLE, c_uint64, mc_key, POINTER(c_uint64))),
    'mc_store_match_async': (CODE, (HANDLE, HANDLE, c_uint64, POINTER(mc_keys),
                                    POINTER(c_size_t))),
    'mc_store_remove_async': (CODE, (HANDLE, HANDLE, c_uint64, POINTER(mc_keys), c_int, c_void_p)),
    'mc_store_health_async': (CODE, (HANDLE, HANDLE, c_uint64, c_uint, POINTER(c_uint32),
                                     POINTER(c_uint64))),
    'mc_store_put_blocks': (CODE, (HANDLE, HANDLE, POINTER(mc_kv_blocks), HANDLE, c_uint64,
                                   POINTER(mc_put_options), c_void_p)),
    'mc_store_get_blocks': (CODE, (HANDLE, HANDLE, POINTER(mc_kv_blocks), HANDLE, c_uint64, c_uint,
                                   c_void_p)),
}


def _path() -> str:
    named = os.environ.get('MC_LIBRARY')
    if named:
        return named
    here = pathlib.Path(__file__).parent
    for name in ('libmc.so.0', 'libmc.so'):
        if (here / name).exists():
            return str(here / name)
    return 'libmc.so.0'


def _checked(code: int, function: Any, arguments: Any) -> int:
    """Raises what a code stands for; its text is of this thread, and read before anything else."""
    if code:
        raise error(code, lib.mc_last_error().decode(errors='replace'))
    return code


def _load() -> Any:
    path = _path()
    try:
        library = ctypes.CDLL(path)
    except OSError as e:
        raise ImportError(f'mc: the library cannot be loaded: {e}. $MC_LIBRARY names it, such as '
                          'build/release/libmc.so') from None
    for name, (result, parameters) in FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is None:
            raise ImportError(f'mc: {path} has no {name}: it is of another version than this '
                              'package')
        function.restype, function.argtypes = result, parameters
        if result is CODE and name != 'mc_code_name':
            function.errcheck = _checked
    return library


class _Unchecked:
    """The same functions, which return their code: for what must be known whatever is raised."""

    def __getattr__(self, name: str) -> Any:
        function = lib[name]  # a new one
        function.restype, function.argtypes = FUNCTIONS[name]
        setattr(self, name, function)
        return function


def check(code: int) -> None:
    """Raises what the code of this thread's last call stands for."""
    _checked(code, None, None)


lib = _load()
unchecked = _Unchecked()
