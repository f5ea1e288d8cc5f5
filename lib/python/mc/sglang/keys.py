"""Which pages engines share: the names of values. Pure.

A page of a pool is one value. Its key has a digest of all on which its bytes depend beside the
tokens, the rank that computed it unless ranks hold the same, the pool, and SGLang's own hash of
the page.
"""
from __future__ import annotations

import hashlib
import json
from typing import Any, Sequence

KV = 'kv'
_ALWAYS_BY_RANK = ('mamba',)
_DRAFTS = ('draft', 'draft_swa')
_ALIKE = ('MLATokenToKVPoolHost', 'DeepSeekV4PagedHostPool')  # pools that every rank has alike
_SHAPE = ('layer_num', 'head_num', 'head_dim', 'v_head_dim', 'kv_lora_rank', 'qk_rope_head_dim',
          'kv_cache_dim')


def _digest(facts: Any) -> str:
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def split_factor(config: Any, zero_copy: bool) -> int:
    """Into how many parts, by heads, this rank's pages are cut: 1 as a rule."""
    if not config.should_split_heads or not zero_copy:
        return 1
    return int(config.tp_lcm_size) // int(config.tp_size)


def facts(config: Any, pool: Any, zero_copy: bool) -> dict[str, Any]:
    """What the bytes of a page depend on beside its tokens and its rank. SGLang copies pages in
    another order than that in which they lie."""
    shape = {name: getattr(pool, name) for name in _SHAPE if hasattr(pool, name)}
    factor = split_factor(config, zero_copy)
    if factor > 1 and 'head_num' in shape:
        shape['head_num'] //= factor
    return {
        'model': config.model_name, 'mla': config.is_mla_model,
        'tp': config.tp_lcm_size if factor > 1 else 0 if config.is_mla_model else config.tp_size,
        'pp': (config.pp_rank, config.pp_size), 'cp': (config.attn_cp_rank, config.attn_cp_size),
        'dcp': (config.dcp_rank, config.dcp_size, config.logical_page_size),
        'page': getattr(pool, 'page_size', None), 'layout': getattr(pool, 'layout', None),
        'page first': config.is_page_first_layout, 'zero copy': zero_copy,
        'dtype': str(getattr(pool, 'dtype', None)), 'shape': shape}


class Keys:
    """Of one rank. `pool` is the anchor: the pool of the KV cache."""

    def __init__(self, namespace: str, config: Any, pool: Any, zero_copy: bool) -> None:
        self._config = config
        self.factor = split_factor(config, zero_copy)
        self.prefix = f'sglang:{namespace}:{_digest(facts(config, pool, zero_copy))}@'

    def of_pages(self, pages: Sequence[str]) -> list[str]:
        """Of the KV cache: `factor` keys for each page, one after another."""
        if self.factor > 1:
            first = self._config.tp_rank * self.factor
            ranks = [f'{first + n}' for n in range(self.factor)]
        else:
            ranks = ['all' if self._config.is_mla_model else f'{self._config.tp_rank}']
        return [f'{self.prefix}{rank}@{KV}@{page}' for page in pages for rank in ranks]

    def of_pool(self, name: str, pool: Any, pages: Sequence[str]) -> list[str]:
        """Of a pool beside it: one key for each page."""
        if name == KV and self.factor == 1:
            return self.of_pages(pages)
        kind = _digest((getattr(pool, 'layout', None), str(getattr(pool, 'dtype', None))))[:8]
        rank = self._config.tp_rank if self._by_rank(name, pool) else 'all'
        return [f'{self.prefix}{rank}@{name}.{kind}@{page}' for page in pages]

    def _by_rank(self, name: str, pool: Any) -> bool:
        if not self._config.is_mla_model or name in _ALWAYS_BY_RANK:
            return True
        return name in _DRAFTS and not any(c.__name__ in _ALIKE for c in type(pool).__mro__)
