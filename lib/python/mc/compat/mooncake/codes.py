"""What Mooncake's store returns for each code of ours."""
from __future__ import annotations

from ...errors import Code, McError

NOT_SET_UP = -1
INVALID = -600
ABSENT = -704
EXISTS = -705
MOVED_OTHER = -800  # another number of bytes than was asked for
NO_SHARED_DISK = -1601
UNSUPPORTED = -1012

_CODES = {
    Code.OK: 0, Code.INVALID: INVALID, Code.NOT_FOUND: -704, Code.EXISTS: -705, Code.BUSY: -703,
    Code.TIMEOUT: -901, Code.UNAVAILABLE: -900, Code.STALE: -707, Code.CORRUPT: -801,
    Code.DENIED: -601, Code.UNSUPPORTED: UNSUPPORTED, Code.INTERNAL: -1, Code.NO_SPACE: INVALID,
}
_OF_PUT = {Code.EXISTS: 0, Code.NO_SPACE: -200}
_OF_REMOVE = {Code.BUSY: -706}


def of_put(code: int) -> int:
    """A key that is there is no failure; a full pool is -200, at which engines stop saving."""
    return _OF_PUT.get(Code(code), _CODES[Code(code)])


def of_remove(code: int) -> int:
    """A value that is leased is -706."""
    return _OF_REMOVE.get(Code(code), _CODES[Code(code)])


def of(code: int) -> int:
    """Elsewhere."""
    return _CODES[Code(code)]


def of_error(error: McError) -> int:
    """Of a call that was not carried out."""
    return _CODES[error.code]
