"""Where the bytes of a KV block lie: derived from each tensor's address, shape and strides.

No name of a layout is believed. What is not "base + block * stride, so many bytes" is refused by
name. A tensor here is anything with data_ptr(), shape, stride(), element_size() and device.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Region:
    """The part of every block that lies in one piece: bytes from base + block * stride on."""

    base: int
    stride: int
    bytes: int


class Unsupported(ValueError):
    """A cache that cannot be moved block by block; the text says which and why."""


def _dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether these dimensions, in some order, fill one piece without gaps and without overlap."""
    expected = 1
    for size, stride in sorted(zip(shape, strides, strict=True), key=lambda d: (d[1], d[0])):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _inner(shape: Sequence[int], strides: Sequence[int],
           without: int) -> tuple[list[int], list[int]]:
    keep = [d for d in range(len(shape)) if d != without]
    return [shape[d] for d in keep], [strides[d] for d in keep]


def _regions_of(name: str, tensor: Any, blocks: int) -> list[Region]:
    shape, strides, size = list(tensor.shape), list(tensor.stride()), tensor.element_size()
    device = str(tensor.device)
    if not device.startswith('cpu'):
        raise Unsupported(f'the KV cache of {name} is on {device}; mc.vllm moves memory of the CPU '
                          f'only')
    base = tensor.data_ptr()
    # Keys and values side by side, each with its blocks: one region for each.
    if len(shape) > 2 and shape[0] == 2 and shape[0] != blocks and shape[1] == blocks:
        halves = [base + half * strides[0] * size for half in (0, 1)]
        shape, strides = shape[1:], strides[1:]
    else:
        halves = [base]
    if not shape or shape[0] != blocks:
        raise Unsupported(f'the KV cache of {name} has shape {tuple(tensor.shape)}; its first '
                          f'dimension should be the {blocks} blocks of the engine')
    rest, steps = _inner(shape, strides, 0)
    if not _dense(rest, steps):
        raise Unsupported(f'a block of {name} is not one piece of memory: shape '
                          f'{tuple(tensor.shape)}, strides {tuple(tensor.stride())}')
    count = 1
    for dimension in rest:
        count *= dimension
    if strides[0] < count:
        raise Unsupported(f'blocks of {name} overlap: strides {tuple(tensor.stride())}')
    return [Region(half, strides[0] * size, count * size) for half in halves]


def regions_of(caches: Mapping[str, Any], blocks: int) -> list[Region]:
    """One or two regions a layer, in the order of the layers. Raises Unsupported."""
    out: list[Region] = []
    for name, tensor in caches.items():
        if not hasattr(tensor, 'data_ptr'):
            raise Unsupported(f'the KV cache of {name} is no tensor: {type(tensor).__name__}')
        # Layers that share one KV cache have it under several names.
        out += [region for region in _regions_of(name, tensor, blocks) if region not in out]
    _check_apart(out, blocks)
    return out


def _check_apart(regions: Sequence[Region], blocks: int) -> None:
    """Refuses tensors that share bytes, also where one lies in the gaps of another's stride."""
    spans = sorted((r.base, r.base + (blocks - 1) * r.stride + r.bytes, r) for r in regions)
    for (_, end, low), (begin, _, high) in zip(spans, spans[1:], strict=False):
        if begin >= end:
            continue
        offset = (high.base - low.base) % low.stride if low.stride else 0
        apart = low.bytes <= offset <= low.stride - high.bytes
        if low.stride == high.stride and apart:
            continue  # interleaved, a block of both in each stride
        raise Unsupported(f'KV caches share memory: {low.bytes} bytes at {low.base:#x} and '
                          f'{high.bytes} bytes at {high.base:#x}')


def describe(caches: Mapping[str, Any], blocks: int) -> list[list[Any]]:
    """What two engines must have in common: names, shapes and strides of a block."""
    out = []
    for name, tensor in caches.items():
        shape, strides = list(tensor.shape), list(tensor.stride())
        at = 1 if shape[0] != blocks else 0
        inner_shape, inner_strides = _inner(shape, strides, at)
        out.append([name, str(getattr(tensor, 'dtype', '')), inner_shape, _order(inner_strides)])
    return out


def _order(strides: Sequence[int]) -> list[int]:
    """The order of dimensions in memory. Strides may depend on the number of blocks."""
    return sorted(range(len(strides)), key=lambda d: -strides[d])


def block_bytes(regions: Sequence[Region]) -> int:
    """Of one block, over all layers."""
    return sum(region.bytes for region in regions)
