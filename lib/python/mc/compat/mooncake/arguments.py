"""Arguments of Mooncake's calls: what is a wrong type there is a TypeError here."""
from __future__ import annotations

from typing import Any, Sequence

from ..._pack import Key, encode

KEY_BYTES = 1024  # at most


def lists(*each: Sequence[Any]) -> bool:
    """Whether lists are equally long. TypeError when one of them is none."""
    for one in each:
        if not isinstance(one, (list, tuple)):
            raise TypeError(f'a list is wanted, not {type(one).__name__}')
    return all(len(one) == len(each[0]) for one in each)


def numbers(*each: Sequence[Any]) -> None:
    """TypeError for what is no number, or below zero."""
    for one in each:
        for n in one:
            if not isinstance(n, int) or n < 0:
                raise TypeError(f'a number of 0 or more is wanted, not {n!r}')


def flag(value: Any) -> bool:
    """Of what is one: numbers and None too, text not."""
    if isinstance(value, (bool, int, float, type(None))):
        return bool(value)
    raise TypeError(f'True or False is wanted, not {type(value).__name__}')


def storable(key: Key) -> bool:
    """Whether mc can have a value of that key; else none is there."""
    name = encode(key)
    return 0 < len(name) <= KEY_BYTES and 0 not in name
