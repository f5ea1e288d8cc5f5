"""mc/_abi.py declares what the headers declare, and the package is as light as it says."""
import ctypes
import ctypes.util
import fnmatch
import os
import pathlib
import socket
import subprocess
import sys
import threading

import headers
import mc
import mc._abi as abi
import pytest

LATER = [line for line in (pathlib.Path(__file__).parent / 'undeclared.txt').read_text().split('\n')
         if line and line[0] != '#']


@pytest.fixture(scope='module')
def sizes(tmp_path_factory):
    return headers.compiled(tmp_path_factory.mktemp('abi'))


def left_out(there, declared):
    """What a header has and _abi.py has not, but for what may come later."""
    return {name for name in set(there) - set(declared)
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in LATER)}


def kind(declared):
    """As headers.kind has it, of a type of ctypes."""
    if declared is None:
        return 'void'
    if declared is abi.mc_key:
        return 'mc_key'
    if declared in (ctypes.c_uint, ctypes.c_uint32):
        return 'u4'
    if declared is ctypes.c_int:
        return 'i4'
    return 'u8' if declared in (ctypes.c_size_t, ctypes.c_uint64) else 'pointer'


def test_functions():
    there = headers.functions()
    assert len(there) >= 39
    assert set(abi.FUNCTIONS) - set(there) == set(), 'declared, and in no header'
    assert left_out(there, abi.FUNCTIONS) == set(), 'in a header, and not declared'
    for name, (result, parameters) in abi.FUNCTIONS.items():
        written = [headers.kind(there[name][0] + ' x'), *map(headers.kind, there[name][1])]
        assert [kind(result), *map(kind, parameters)] == written, name


def test_structures(sizes):
    there = headers.structures()
    declared = {s.__name__: s for s in abi.STRUCTURES}
    assert set(declared) - set(there) == set(), 'declared, and in no header'
    assert left_out(there, declared) == set(), 'in a header, and not declared'
    for name, structure in declared.items():
        assert ctypes.sizeof(structure) == sizes['sizeof', name][0], name
        if name in LATER:
            continue
        assert [f[0] for f in structure._fields_] == there[name], name
        for member, *_ in structure._fields_:
            field = getattr(structure, member)
            assert (field.offset, field.size) == sizes['member', f'{name}.{member}'], member


def test_constants(sizes):
    there = {name: value for (what, name), (value, _) in sizes.items() if what == 'constant'}
    assert set(abi.CONSTANTS) - set(there) == set(), 'declared, and in no header'
    assert left_out(there, abi.CONSTANTS) == set(), 'in a header, and not declared'
    assert all(there[name] == value for name, value in abi.CONSTANTS.items())


def test_codes_and_states_are_those_of_c(sizes):
    for prefix, values in (('MC_', mc.Code), ('MC_STATE_', mc.State), ('MC_PRIORITY_', mc.Priority)):
        for value in values:
            assert abi.CONSTANTS[prefix + value.name] == value


def run(program, **environment):
    return subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **environment})


def test_the_wheels_have_the_version_of_the_library():
    package = pathlib.Path(mc.__file__).parent
    for project in (package.parent / 'pyproject.toml', package / 'compat/shim/pyproject.toml'):
        assert f'\nversion = "{mc.__version__}"\n' in project.read_text()


def test_import_brings_nothing_else():
    out = run('import sys, mc, mc.cluster\n'
              'print([m for m in ("numpy", "torch", "asyncio", "zmq") if m in sys.modules])')
    assert out.stdout == '[]\n', out


@pytest.mark.parametrize('path, says', [
    ('/nowhere/libmc.so', '/nowhere/libmc.so'),
    (ctypes.util.find_library('m') or 'libm.so.6', 'has no mc_version'),
])
def test_a_library_that_does_not_fit_is_an_import_error(path, says):
    out = run('import mc', MC_LIBRARY=path)
    assert out.returncode == 1 and 'ImportError: mc: ' in out.stderr and says in out.stderr


def test_the_interpreter_goes_on_during_a_call():
    """The call waits for a peer that says nothing; the peer is a thread of the same interpreter."""
    with socket.socket() as silent, mc.Engine('waits') as engine:
        silent.bind(('127.0.0.1', 0))
        silent.listen()
        done, during = threading.Event(), []

        def accepts():
            connection, _ = silent.accept()
            during.append(not done.is_set())
            connection.close()

        thread = threading.Thread(target=accepts)
        thread.start()
        # The thread gets its turn when this one gives it, as a call that lets the thread run does.
        interval = sys.getswitchinterval()
        sys.setswitchinterval(100)
        try:
            with pytest.raises(mc.McError):
                engine.open('127.0.0.1:%d' % silent.getsockname()[1], timeout=1)
            done.set()
        finally:
            sys.setswitchinterval(interval)
        thread.join()
        assert during == [True]
