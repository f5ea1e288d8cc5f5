"""Which pages lead, what a pool's policy wants, and where the pieces of pages lie. Pure."""
from __future__ import annotations

from typing import Any, Callable, List, Sequence

from mc.buffers import Span, span


def leading(found: Sequence[bool]) -> int:
    """How many are there before the first gap."""
    return next((at for at, there in enumerate(found) if not there), len(found))


def _all_pages(found: Sequence[bool], transfer: Any) -> set[int]:
    return set(range(1, leading(found) + 1))


def _trailing_pages(found: Sequence[bool], transfer: Any) -> set[int]:
    """Ends before which the last pages are there, as many as the transfer has keys."""
    window = max(1, len(transfer.keys or ()))
    return {end for end in range(1, len(found) + 1) if all(found[max(0, end - window):end])}


# block_groups never limits the KV cache, and no pool of SGLang 0.5.23 has it: it is left out.
POLICIES: dict[str, Callable[[Sequence[bool], Any], set[int]]] = {
    'all_pages': _all_pages, 'trailing_pages': _trailing_pages}


def grouped(said: tuple[Sequence[int], Sequence[int]], count: int) -> List[List[Span]]:
    """Of addresses and sizes of pages, in their order: the pieces of each value."""
    addresses, sizes = said
    if not count or len(addresses) % count or len(addresses) != len(sizes) or not addresses:
        raise ValueError(f'{len(addresses)} pieces and {len(sizes)} sizes for {count} values')
    each = len(addresses) // count
    pieces = [Span(address, size, None) for address, size in zip(addresses, sizes)]
    return [pieces[at:at + each] for at in range(0, len(pieces), each)]


def places_of(keys: Sequence[str], places: Sequence[Any], sizes: Any) -> List[List[Span]]:
    """Of tensors, or of an address, or several, with sizes."""
    if len(places) != len(keys) or (sizes is not None and len(sizes) != len(keys)):
        raise ValueError(f'{len(keys)} keys and {len(places)} places')
    if sizes is None:
        return [[span(place)] for place in places]
    out = []
    for place, size in zip(places, sizes):
        many = isinstance(place, (list, tuple))
        out.append([Span(a, b, None) for a, b in zip(place if many else [place],
                                                     size if many else [size])])
    return out
