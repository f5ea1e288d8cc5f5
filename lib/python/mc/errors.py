"""The codes of the library, and an exception for each.

A call on one thing raises; a call on many returns a `Result` for each item and raises only when
the call as a whole was not carried out. `KeyError`, `TimeoutError`, `ConnectionError`,
`PermissionError` and `ValueError` catch what their names say.
"""
from __future__ import annotations

import enum
from typing import NamedTuple, Optional


class Code(enum.IntEnum):
    """What became of a call or of one item. The numbers are those of mc_code."""

    OK = 0
    INVALID = 1
    NOT_FOUND = 2
    EXISTS = 3
    NO_SPACE = 4
    BUSY = 5
    TIMEOUT = 6
    UNAVAILABLE = 7
    STALE = 8
    CORRUPT = 9
    DENIED = 10
    UNSUPPORTED = 11
    INTERNAL = 12


class Put(enum.IntEnum):
    """How a put ended that did not fail."""

    STORED = 0
    EXISTED = 1
    NOT_ADMITTED = 2


class McError(Exception):
    """A call failed. `code` is a `Code`, and `text` says what it was and what helps."""

    code = Code.INTERNAL

    def __init__(self, text: str, code: Optional[int] = None) -> None:
        super().__init__(text)
        self.text = text
        if code is not None:
            self.code = Code(code)

    def __str__(self) -> str:
        return f'{self.code.name.lower().replace("_", "-")}: {self.text}'


class Invalid(McError, ValueError):
    """The request is wrong; to repeat it does not help."""

    code = Code.INVALID


class NotFound(McError, KeyError):
    """There is no such key, peer or option."""

    code = Code.NOT_FOUND


class Exists(McError):
    """It is there already."""

    code = Code.EXISTS


class NoSpace(McError):
    """Not enough memory: of the pool, or of the buffer given."""

    code = Code.NO_SPACE


class Busy(McError):
    """In use now; it may succeed later."""

    code = Code.BUSY


class Timeout(McError, TimeoutError):
    """The time given was over."""

    code = Code.TIMEOUT


class Unavailable(McError, ConnectionError):
    """The peer is gone, or the call was cancelled."""

    code = Code.UNAVAILABLE


class Stale(McError):
    """The bytes have another owner now."""

    code = Code.STALE


class Corrupt(McError):
    """A checksum is wrong, or a peer sent what makes no sense."""

    code = Code.CORRUPT


class Denied(McError, PermissionError):
    """Memory that is not writable, or a wrong secret."""

    code = Code.DENIED


class Unsupported(McError):
    """This build, this machine or this process cannot do it."""

    code = Code.UNSUPPORTED


class Internal(McError):
    """A bug of the library."""

    code = Code.INTERNAL


_CLASSES: dict[int, type[McError]] = {c.code: c for c in (
    Invalid, NotFound, Exists, NoSpace, Busy, Timeout, Unavailable, Stale, Corrupt, Denied,
    Unsupported, Internal)}


def error(code: int, text: str) -> McError:
    """The exception of a code."""
    return _CLASSES.get(code, Internal)(text)


CODES = tuple(Code)  # by number, faster than Code(number)
PUTS = tuple(Put)


class Result(NamedTuple):
    """What became of one item of many."""

    code: Code
    bytes: int = 0  # moved, or got
    outcome: Optional[Put] = None  # of a put

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.code is Code.OK

    def check(self) -> 'Result':
        """Itself, or raises what its code stands for."""
        if self.code is not Code.OK:
            raise error(self.code, 'an item of a batch failed')
        return self
