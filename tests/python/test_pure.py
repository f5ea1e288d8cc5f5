"""What needs no cluster: buffers, packed arrays, errors, options, handles."""
import array
import ctypes
import types
import gc
import os
import threading

import mc
import mc._abi as abi
import pytest
from mc import _options, _pack, buffers
from mc._handle import Handle

try:
    import numpy
except ImportError:
    numpy = None


def read(span):
    return ctypes.string_at(span.address, span.bytes)


# ---- buffers

class Interface:
    """An object that only has __array_interface__."""

    def __init__(self, data, shape, typestr='|u1', strides=None, readonly=False):
        self.data = data
        address = buffers.span(data).address
        self.__array_interface__ = {'data': (address, readonly), 'shape': shape, 'version': 3,
                                    'typestr': typestr, 'strides': strides}


class Pointer:
    """An object that only has data_ptr() and nbytes, as a tensor that needs gradients."""

    def __init__(self, data, device='cpu', contiguous=True):
        self.data, self.device, self.contiguous = data, device, contiguous
        self.nbytes = len(data)

    def data_ptr(self):
        return buffers.span(self.data).address

    def is_contiguous(self):
        return self.contiguous


class Dlpack:
    """An object that only has DLPack: `shape` of elements of 2 bytes, one element behind its start."""

    def __init__(self, data, shape, strides=None, device=1):
        self.data, self.device = data, device
        longs = ctypes.c_int64 * len(shape)
        self.shape, self.strides = longs(*shape), longs(*strides) if strides else None
        self.tensor = buffers._Tensor(
            data=buffers.span(data).address, device_type=device, ndim=len(shape), code=1, bits=16,
            lanes=1, shape=self.shape, strides=self.strides, byte_offset=2)

    def __dlpack_device__(self):
        return (self.device, 0)

    def __dlpack__(self):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p,
                                                       ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b'dltensor', None)


@pytest.mark.parametrize('thing, content', [
    (b'abc', b'abc'),
    (bytearray(b'abc'), b'abc'),
    (memoryview(b'xabcx')[1:4], b'abc'),
    (array.array('H', [0x6261, 0x6463]), b'abcd'),
    (b'', b''),
    (Interface(bytearray(b'abcdef'), (3, 2)), b'abcdef'),
    (Interface(bytearray(b'abcdef'), (3, 1), '<u2', (2, 99)), b'abcdef'),
    (Pointer(bytearray(b'abc')), b'abc'),
    (Dlpack(bytearray(b'xxabcdef'), (3, 1)), b'abcdef'),
    (Dlpack(bytearray(b'xxabcdef'), (1, 3), (77, 1)), b'abcdef'),
])
def test_where_bytes_lie(thing, content):
    assert read(buffers.span(thing)) == content


@pytest.mark.parametrize('thing, error', [
    (b'abc', BufferError),
    (memoryview(bytearray(8))[::2], BufferError),
    (memoryview(b'abc'), BufferError),
    (Interface(bytearray(8), (4,), strides=(2,)), BufferError),
    (Interface(bytearray(8), (8,), readonly=True), BufferError),
    (Pointer(bytearray(8), device='cuda:0'), BufferError),
    (Pointer(bytearray(8), contiguous=False), BufferError),
    (Dlpack(bytearray(64), (2, 2), (1, 2)), BufferError),
    (Dlpack(bytearray(64), (2, 2), device=2), BufferError),
    (7, TypeError),
    ('text', TypeError),
])
def test_what_is_refused_for_writing(thing, error):
    with pytest.raises(error):
        buffers.span(thing, writable=True)


def test_nothing_is_copied_and_the_object_stays():
    data = bytearray(b'12345678')
    kept = buffers.span(data, writable=True)
    ctypes.memset(kept.address, ord('x'), 3)
    assert data == b'xxx45678'
    with pytest.raises(BufferError):  # it cannot be resized meanwhile
        data.append(1)
    del kept
    data.append(1)


@pytest.mark.skipif(numpy is None, reason='no numpy here')
def test_numpy():
    a = numpy.arange(6, dtype='u2').reshape(2, 3)
    assert buffers.span(a, writable=True)[:2] == (a.ctypes.data, 12)
    with pytest.raises(BufferError):
        buffers.span(a.T)


def test_fresh_bytes_are_filled_in_place():
    for size in (0, 1, 2, 4096):
        value, address = buffers.fresh_bytes(size)
        ctypes.memset(address, ord('q'), size)
        assert value == b'q' * size


# ---- packed arrays

KEYS = ['a', 'bcd', 'ü', b'\xff\xfe', 'e' * 1024]
EVEN = [f'{n:05}' for n in range(300)]


@pytest.mark.parametrize('keys', [[], ['one'], ['a', 'bb', 'ccc'], [b'a', b''], KEYS, EVEN, ['', '']])
def test_keys(keys):
    packed = _pack.pack_keys(keys)
    found = (abi.mc_key * packed.count).from_address(packed.address) if packed.count else []
    assert [ctypes.string_at(k.data, k.bytes) for k in found] == [_pack.encode(k) for k in keys]


def flat_keys(packed):
    ends = array.array('I')
    ends.frombytes(ctypes.string_at(packed.native.ends, 4 * packed.count))
    joined = ctypes.string_at(ctypes.cast(packed.native.bytes, ctypes.c_void_p), ends[-1] if ends else 0)
    return [joined[begin:end] for begin, end in zip([0, *ends], ends)]


@pytest.mark.parametrize('keys', [
    [], ['one'], ['a', 'bb', 'ccc'], [b'a', b''], KEYS, EVEN, ['', ''], ['bb', 'a', 'ccc'],
    ('ab', 'cd'), {'ab': 1, 'cd': 2}])
def test_flat_keys(keys):
    packed = _pack.FlatKeys(keys)
    gc.collect()
    assert flat_keys(packed) == [_pack.encode(k) for k in keys]


@pytest.mark.parametrize('keys', [['a\0', 'b'], ['a\0', '\0b'], ['ab', 'c\0d', 'e'], ['a', '\0\0', '']])
def test_flat_keys_with_nul(keys):
    joined, ends = _pack.flat(keys)
    assert [joined[begin:end].decode() for begin, end in zip([0, *ends], ends)] == keys


def test_a_number_is_no_key():
    for keys in ([5], ['a', 5], [None]):
        with pytest.raises(TypeError):
            _pack.flat(keys)


def test_a_key_of_any_bytes_is_text():
    for key in (b'plain', 'ü'.encode(), b'\xff\x80'):
        assert _pack.encode(_pack.decode(key)) == key


def test_buffers():
    values = [[b'abc'], [b'd', bytearray(b'ef'), b''], []]
    packed = _pack.Buffers([buffers.spans(v) for v in values])
    gc.collect()
    found = (abi.mc_buffer * 4).from_buffer(packed.buffers)
    assert [ctypes.string_at(b.data, b.bytes) for b in found] == [b'abc', b'd', b'ef', b'']
    assert list(packed.ends) == [1, 4, 4]


def test_results():
    results = _pack.Results(3)
    for n, result in enumerate((abi.mc_put_result * 3).from_address(results.address)):
        result.code, result.outcome, result.bytes = n % 2 * 7, n, 1 << (20 * n)
    assert list(results.codes) == [0, 7, 0] and list(results.flags) == [0, 1, 2]
    assert list(results.bytes) == [1, 1 << 20, 1 << 40] and results.failed() == [1]
    assert _pack.Results(2).failed() == [] and list(_pack.Results(0).codes) == []


def test_regions_are_within_their_memory():
    from mc.blocks import Region, _place
    memory = bytearray(100)
    assert _place(Region(memory, 10), 10).address == buffers.span(memory).address
    assert _place(Region(memory, 10, stride=20, offset=10), 5).bytes == 100
    for region, blocks in ((Region(memory, 10), 11), (Region(memory, 10, stride=20, offset=11), 5),
                           (Region(memory, 10, stride=50, rows=3, row_stride=25), 2)):
        with pytest.raises(ValueError, match='memory that has 100'):
            _place(region, blocks)


def test_put_options():
    how = mc.PutOptions(replicas=2, cls='context', pin='soft', ttl=1.5, prefer=['a', 'b'], group='g',
                        prefer_local=True, replace=True)
    n = how.native
    assert (n.size, n.replicas, n.cls, n.pin, n.ttl_ms) == (ctypes.sizeof(n), 2, 3, 2, 1500)
    assert (n.prefer, n.group, n.tenant, n.flags) == (b'a,b', b'g', None, 3)
    assert how.native is n
    with pytest.raises(ValueError, match="pin 'firm': want one of none, soft, hard"):
        mc.PutOptions(pin='firm').native
    for wrong in (dict(ttl=-5), dict(ttl=float('nan')), dict(ttl=1e30), dict(replicas=-1), dict(replicas=9)):
        with pytest.raises(ValueError, match='want'):
            mc.PutOptions(**wrong).native
    assert mc.PutOptions(ttl=60 * 86400).native.ttl_ms == 60 * 86400 * 1000


def test_what_means_nothing_is_refused_by_name():
    from mc import _limits, _options, _pack
    assert _options.milliseconds(float('inf')) == 0xffffffff and _options.milliseconds(-1) == 0
    with pytest.raises(ValueError, match='want a number of seconds'):
        _options.milliseconds(float('nan'))
    with pytest.raises(ValueError, match='timeout inf: want a number'):
        _options.text('timeout', float('inf'))
    for timeout in (0, -1, float('nan')):
        with pytest.raises(ValueError, match='above 0'):
            _limits.deadline(timeout)
    for key in (bytearray(b'k'), memoryview(b'k'), 3):
        with pytest.raises(TypeError, match='a key is text or bytes, not'):
            _pack.FlatKeys([key])
        with pytest.raises(TypeError, match='a key is text or bytes, not'):
            _pack.encode(key)
    from mc._calls import GetRanges
    for piece in (mc.Piece(bytearray(4), offset=-1), mc.Piece(bytearray(4), rows=0),
                  mc.Piece(bytearray(4), bytes=-1)):
        with pytest.raises(ValueError, match='no negative numbers'):
            GetRanges(['k'], [[piece]])


def test_arrays_of_objects_have_no_bytes():
    numpy = pytest.importorskip('numpy')
    for thing in (numpy.array([1, 'two'], object), numpy.zeros(2, [('a', 'i4'), ('b', 'O')])):
        with pytest.raises(BufferError, match='references to objects'):
            buffers.span(thing)
    assert buffers.span(numpy.zeros(2, [('O', 'i4'), ('TO', 'f8')])).bytes == 24
    with pytest.raises(BufferError, match='references to objects'):
        buffers.span(types.SimpleNamespace(__array_interface__={
            'data': (1, False), 'typestr': '|O8', 'shape': (1,)}))


# ---- errors and options

def test_every_code_has_an_exception():
    for code in mc.Code:
        if code is mc.Code.OK:
            continue
        error = mc.errors.error(code, 'why')
        assert error.code is code and str(error) == f'{code.name.lower().replace("_", "-")}: why'
        assert mc._abi.lib.mc_code_name(code) == code.name.lower().replace('_', '-').encode()
    bases = {KeyError: mc.NotFound, TimeoutError: mc.Timeout, ConnectionError: mc.Unavailable,
             PermissionError: mc.Denied, ValueError: mc.Invalid}
    assert all(issubclass(ours, base) for base, ours in bases.items())
    with pytest.raises(mc.Stale):
        mc.Result(mc.Code.STALE).check()


@pytest.mark.parametrize('name, value, text', [
    ('timeout', 2.5, '2500000000ns'), ('timeout', '2s', '2s'), ('replicas', 2, '2'),
    ('hedge', False, 'false'), ('transports', ['shm', 'tcp'], 'shm,tcp'),
])
def test_options_as_text(name, value, text):
    assert _options.text(name, value) == text


def test_an_option_that_is_none_says_so():
    with pytest.raises(mc.McError, match='no-such-option'):
        mc.Store('127.0.0.1:1', no_such_option=1)
    with pytest.raises(mc.McError, match='replicas|whole number'):
        mc.Store('127.0.0.1:1', replicas='many')


@pytest.mark.parametrize('seconds, ms', [(0, 0), (-1, 0), (0.0001, 1), (1, 1000), (1e12, 2**32 - 1)])
def test_milliseconds(seconds, ms):
    assert _options.milliseconds(seconds) == ms


# ---- handles

def test_a_handle_is_freed_once_after_its_calls_and_after_what_belongs_to_it():
    freed = []
    parent = Handle('parent', 1, freed.append)
    child = Handle('child', 2, freed.append, parent)
    inside, leave = threading.Event(), threading.Event()

    def call():
        with child as pointer:
            assert pointer == 2
            inside.set()
            leave.wait()

    thread = threading.Thread(target=call)
    thread.start()
    inside.wait()
    assert not parent.close(0.01) and freed == []  # a call is under way
    with pytest.raises(mc.Invalid, match='parent is closed'):
        parent.__enter__()
    leave.set()
    thread.join()
    assert parent.close() and parent.close() and child.close()
    assert freed == [2, 1]
    with pytest.raises(mc.Invalid, match='parent is closed'):
        Handle('late', 3, freed.append, parent)
    assert freed == [2, 1, 3]


def test_the_child_of_a_fork_refuses_calls_and_closes_nothing():
    engine = mc.Engine('forks')
    memory = engine.allocate(4096)
    child = os.fork()
    if child == 0:
        try:
            engine.allocate(4096)
        except mc.Unsupported as e:
            memory.close()
            engine.close()
            del memory, engine
            gc.collect()
            os._exit(0 if 'open it in the child' in str(e) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    with engine.allocate(4096):
        pass
    engine.close()


def test_an_engine_that_nobody_holds_is_closed():
    engine = mc.Engine('dropped')
    handle = engine._handle
    del engine
    gc.collect()
    assert handle.closed and handle._freed
