"""Under which keys blocks lie in the pool: who finds one would have computed the same bytes.

    vllm:<fingerprint>@tp<rank>/<of>@pp<rank>/<of>@g<group>@<block hash>

The block hash is vLLM's own. The fingerprint digests all else that the bytes of a block depend on.
Of two engines with different fingerprints none finds a block of the other.
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

_ENDS = 1 << 16  # bytes of a weight file's begin and end that are digested
WEIGHTS = ('.safetensors', '.bin', '.pt', '.gguf')


def digest(value: Any) -> str:
    """Of anything that JSON can say; the order of members does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(',', ':'), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def digest_of_folder(folder: str, suffixes: tuple[str, ...] = WEIGHTS) -> str:
    """Of the weights in a folder: each file's name, size and both ends. "" if there are none."""
    paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))
             if name.endswith(suffixes)]
    return digest_of_files([path for path in paths if os.path.isfile(path)])


def digest_of_files(paths: Sequence[str]) -> str:
    """Of each file's name, size and both ends. "" if there are none."""
    out = hashlib.sha256()
    for path in paths:
        size = os.path.getsize(path)
        out.update(f'{os.path.basename(path)}\0{size}\0'.encode())
        with open(path, 'rb') as file:
            out.update(file.read(_ENDS))
            file.seek(max(0, size - _ENDS))
            out.update(file.read(_ENDS))
    return out.hexdigest()[:32] if paths else ''


def fingerprint(rows: Mapping[str, Any]) -> str:
    """Of all rows that two engines must have in common."""
    return digest(dict(rows))


def rank_label(tp: int, tp_size: int, pp: int, pp_size: int, group: int = 0) -> str:
    """Which part of a block a worker has."""
    return f'tp{tp}/{tp_size}@pp{pp}/{pp_size}@g{group}'


def prefix(scope: str, label: str) -> bytes:
    """What stands before the hash. A scope is the fingerprint, and the adapter of a request."""
    return f'vllm:{scope}@{label}@'.encode()


def weights_of(config: Any) -> str:
    """What tells a model's weights from others: a digest of its folder, its file or its snapshot of
    the Hub; else the commit at the Hub. "" when there is neither."""
    model, load = config.model_config, getattr(config, 'load_config', None)
    path = model.model
    if os.path.isfile(path):
        return digest_of_files([path])
    if not os.path.isdir(path):
        with contextlib.suppress(Exception):  # no such package, no model, no name of a model
            from huggingface_hub import snapshot_download

            path = snapshot_download(path, revision=getattr(model, 'revision', None),
                                     cache_dir=getattr(load, 'download_dir', None),
                                     local_files_only=True, ignore_patterns='*')
    found = digest_of_folder(path) if os.path.isdir(path) else ''
    return found or str(getattr(model.hf_config, '_commit_hash', None) or '')


def model_rows(config: Any, vllm_version: str) -> dict[str, Any]:
    """Of a VllmConfig: what the KV of a token depends on, but for the layout and the hashes."""
    model, cache = config.model_config, config.cache_config
    weights = weights_of(config)
    hf = model.hf_config.to_dict() if hasattr(model.hf_config, 'to_dict') else str(model.hf_config)
    if isinstance(hf, dict):
        hf = {key: value for key, value in hf.items() if not key.startswith('_')}
    return {
        # The kernels of another release may lay out a block of the same shape differently.
        'vllm': '.'.join(vllm_version.split('+')[0].split('.')[:2]),
        'model': (os.path.basename(model.model.rstrip('/')) if os.path.exists(model.model)
                  else model.model),
        'revision': str(getattr(model, 'revision', None)),
        'weights': weights,
        'config': digest(hf),
        'dtype': str(model.dtype),
        'kv-dtype': str(cache.cache_dtype),
        'quantization': str(getattr(model, 'quantization', None)),
        'max-model-len': int(model.max_model_len),  # some kinds of RoPE depend on it
        'block-size': int(cache.block_size),
    }
