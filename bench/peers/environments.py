"""Where the peers are installed, their versions, and a side for each that is there."""
import importlib.metadata
import os
import pathlib
import shutil
import sys

from side import Side
from turns import skipped

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENGINES = pathlib.Path(os.environ.get('MC_ENGINES', ROOT / 'build/engines')).resolve()
PACKAGES = {'mooncake': 'mooncake-transfer-engine-non-cuda', 'nixl': 'nixl-cu12',
            'llama': 'llama-cpp-python', 'lmcache': 'lmcache'}


class Found:
    """A side, and what its workers are started with."""

    def __init__(self, side, python, module, environment):
        self.side, self.python, self.module, self.environment = side, python, module, environment


def packages_of(folder):
    """Where an environment keeps its packages."""
    return next(iter(sorted(folder.glob('lib/python3*/site-packages'))), None)


def version_of(folder, package):
    """The version that is installed there."""
    return next(importlib.metadata.distributions(name=package, path=[str(packages_of(folder))])).version


def python_of(name):
    """The interpreter of a peer that `scripts/setup --peers` installed, or None."""
    python = ENGINES / name / 'bin/python'
    return python if python.exists() and (ENGINES / name / 'ready').exists() else None


def installed(name, what):
    """The same, with a line that says what is missing."""
    python = python_of(name)
    if python is None:
        skipped(what, name, f'not in {ENGINES}: scripts/setup --peers installs it')
    return python


def version(name):
    return version_of(ENGINES / name, PACKAGES[name])


def own_version():
    import mc
    return mc.__version__


def mc_side(run, transport):
    del transport
    path = os.pathsep.join((str(ROOT / 'lib/python'), str(pathlib.Path(__file__).parent)))
    environment = {'PYTHONPATH': path, 'MC_LIBRARY': str(run.build / 'libmc.so'), 'MC_BIN': str(run.build)}
    python = python_of('mooncake') or python_of('nixl') or sys.executable  # the peers' own interpreter
    return Found(Side('mc', own_version(), run.folder), python, 'mc', environment)


def mooncake_side(run, transport):
    del transport
    python = installed('mooncake', 'transfers and store')
    if python is None:
        return None
    environment = {'PYTHONPATH': str(pathlib.Path(__file__).parent), 'MC_FORCE_TCP': '1', 'GLOG_minloglevel': '2'}
    return Found(Side('Mooncake', version('mooncake'), run.folder), python, 'mooncake', environment)


def nixl_side(run, transport):
    python = installed('nixl', 'transfers')
    if python is None:
        return None
    environment = {'PYTHONPATH': str(pathlib.Path(__file__).parent)}
    if transport == 'tcp':
        environment['UCX_TLS'] = 'tcp'
    return Found(Side('NIXL', version('nixl'), run.folder), python, 'nixl', environment)


def lmcache_side(run):
    folder = next(iter(sorted(ENGINES.glob('lmcache-*/ready'), reverse=True)), None)
    if folder is None:
        skipped('local CPU', 'LMCache', f'not in {ENGINES}: scripts/setup --engines lmcache installs it')
        return None
    folder = folder.parent
    environment = {'PYTHONPATH': str(pathlib.Path(__file__).parent), 'LMCACHE_LOG_LEVEL': 'ERROR'}
    side = Side('LMCache', version_of(folder, PACKAGES['lmcache']), run.folder)
    return Found(side, folder / 'bin/python', 'lmcache', environment)


def mooncake_master():
    """The program of Mooncake's package."""
    packages = packages_of(ENGINES / 'mooncake')
    return shutil.which('mooncake_master', path=str(packages / 'mooncake'))
