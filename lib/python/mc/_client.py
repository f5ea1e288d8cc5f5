"""What an engine's configuration says of the client that it opens: LMCache's and SGLang's."""
from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, Mapping

from ._settings import PASSED, near, passed, seconds
from .store import Store, own_name

KNOWN = ('namespace', 'master', 'name', 'timeout', 'register', *PASSED)
_NAMESPACE = re.compile(r'[A-Za-z0-9._-]{1,64}')
_TRUTH = {'true': True, 'false': False}


@dataclass
class ClientSettings:
    """`timeout` is of each call, in seconds; `register`: memory that values lie in."""

    namespace: str = ''
    master: str = '127.0.0.1:5550'
    name: str = ''
    timeout: float = 2.0
    register: bool = True
    options: dict[str, str] = field(default_factory=dict)  # of the store's client


def own_client_name(settings: ClientSettings, engine: str) -> str:
    """Says which engine and process it is of."""
    return f'{settings.name}-{os.getpid()}' if settings.name else f'{engine}-{own_name()}'


def open_store(settings: ClientSettings, engine: str) -> Store:
    """A client of that name."""
    return Store(settings.master, own_client_name(settings, engine), timeout=settings.timeout,
                 **settings.options)


def parse(given: Mapping[str, Any], where: str) -> ClientSettings:
    """Raises ValueError that names what is wrong, and the nearest name that is right."""
    out = ClientSettings()
    for name, value in given.items():
        name = name.replace('_', '-')
        if name == 'namespace':
            out.namespace = str(value)
        elif name == 'master':
            out.master = str(value)
        elif name == 'name':
            out.name = str(value)
        elif name == 'timeout':
            out.timeout = seconds(name, value)
        elif name == 'register':
            text = str(value).lower()
            if text not in _TRUTH:
                raise ValueError(f'register: {value!r} is neither true nor false')
            out.register = _TRUTH[text]
        elif name in PASSED:
            out.options[name] = passed(value)
        else:
            raise ValueError(f'{where} has {name!r}, which mc does not know; {near(name, KNOWN)}')
    if out.timeout <= 0:
        raise ValueError(f'timeout: {out.timeout:g} s: every call must end, so it must be above 0')
    return out


def need_namespace(settings: ClientSettings, where: str) -> str:
    """The namespace, which parts deployments that must not share."""
    name = settings.namespace
    if not name:
        raise ValueError(f"{where} wants a 'namespace': engines of one namespace share blocks, so "
                         'it must differ where model, chunk size, hash or layout differ')
    if not _NAMESPACE.fullmatch(name):
        raise ValueError(f'namespace {name!r}: want 1 to 64 letters, digits, dots, dashes and '
                         'underscores')
    return name
