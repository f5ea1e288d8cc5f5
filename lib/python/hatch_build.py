"""Puts libmc.so.0 of $MC_LIBRARY_DIR, stripped, into the wheel, and names its platform.

The library is built by CMake before. One wheel serves every CPython: nothing is compiled for one.
"""
from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sysconfig
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = 'libmc.so.0'


class LibraryHook(BuildHookInterface):
    """What hatchling calls."""

    PLUGIN_NAME = 'custom'

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before a wheel is made; an editable one uses $MC_LIBRARY at run time."""
        if version == 'editable':
            return
        folder = os.environ.get('MC_LIBRARY_DIR')
        if not folder:
            raise RuntimeError('$MC_LIBRARY_DIR must name the folder of libmc.so.0: make python')
        self.copy = tempfile.mkdtemp()
        library = pathlib.Path(self.copy) / LIBRARY
        shutil.copy(pathlib.Path(folder).resolve() / LIBRARY, library)
        subprocess.run(['strip', '--strip-unneeded', str(library)], check=True)
        build_data['pure_python'] = False
        platform = sysconfig.get_platform().replace('-', '_').replace('.', '_')
        build_data['tag'] = f'py3-none-{platform}'
        build_data['force_include'][str(library)] = f'mc/{LIBRARY}'
        start = pathlib.Path(self.root) / 'mc_mooncake.pth'
        build_data['force_include'][str(start)] = 'mc_mooncake.pth'

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """After it."""
        if version != 'editable':
            shutil.rmtree(self.copy, ignore_errors=True)
