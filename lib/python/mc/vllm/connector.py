"""McConnector: vLLM's way to the pool. It translates calls; the decisions stand beside it."""
from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import socket
import threading
from typing import Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)
from vllm.logger import init_logger

from mc.vllm import keys, layout, metrics, settings
from mc.vllm.adapters import Adapters
from mc.vllm.lookups import Lookups
from mc.vllm.pool import Pool
from mc.vllm.scheduler import Plan, Scheduler
from mc.vllm.worker import Worker

logger = init_logger('vllm.mc')


class McMetadata(base.KVConnectorMetadata):
    """What the workers do in a step."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan


class McHandshake(base.KVConnectorHandshakeMetadata):
    """Of one worker: its rank, and what the bytes of its blocks depend on."""

    def __init__(self, rank: str, rows: dict[str, Any]) -> None:
        self.rank, self.rows = rank, rows


class McWorkerMetadata(base.KVConnectorWorkerMetadata):
    """Hashes of blocks that were not saved after all."""

    def __init__(self, lost: list[bytes]) -> None:
        self.lost = lost

    def aggregate(self, other: Any) -> 'McWorkerMetadata':
        """Of two workers."""
        return McWorkerMetadata(self.lost + other.lost)


class McStats(KVConnectorStats):
    """What was counted, as vLLM carries it between processes."""

    def reset(self) -> None:
        """Counts from nothing."""
        self.data = metrics.empty()

    def aggregate(self, other: Any) -> 'McStats':
        """Of two workers, or of two times."""
        return McStats(data=metrics.add(self.data, other.data))

    def reduce(self) -> dict[str, int | float]:
        """For a line of vLLM's log."""
        return metrics.reduce(self.data)

    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return metrics.is_empty(self.data)


class McPromMetrics(KVConnectorPromMetrics):
    """mc:load_seconds and the like, for each engine of the process."""

    _BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)

    def __init__(self, config: Any, types: Any, labels: list[str], values: Any) -> None:
        super().__init__(config, types, labels, values)
        self._values = values
        self._lists = {
            name: self._histogram_cls(name=f'mc:{name}', documentation=f"{name} of mc's connector",
                                      buckets=self._BUCKETS, labelnames=labels)
            for name in metrics.LISTS
        }
        self._counts = {
            name: self._counter_cls(name=f'mc:{name}', documentation=f"{name} of mc's connector",
                                    labelnames=labels)
            for name in metrics.COUNTS
        }
        self._labeled = {
            name: self._counter_cls(name=f'mc:{name}', documentation=f"{name} of mc's connector",
                                    labelnames=[*labels, label])
            for name, label in metrics.LABELED.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Adds what one engine counted."""
        labels = self._values[engine_idx]
        for name, metric in self._lists.items():
            for seconds in transfer_stats_data.get(name, []):
                metric.labels(*labels).observe(seconds)
        for name, metric in self._counts.items():
            if transfer_stats_data.get(name):
                metric.labels(*labels).inc(transfer_stats_data[name])
        for name, metric in self._labeled.items():
            for label, count in transfer_stats_data.get(name, {}).items():
                metric.labels(*labels, label).inc(count)


class McConnector(base.KVConnectorBase_V1, base.SupportsHMA):
    """vLLM makes one in its scheduler and one in each worker."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._config = vllm_config
        self._cache = kv_cache_config
        transfer = vllm_config.kv_transfer_config
        self._settings = settings.parse(transfer.kv_connector_extra_config)
        self._counters = metrics.Counters()
        self._pool: Pool | None = None
        self._scheduler: Scheduler | None = None
        self._lookups: Lookups | None = None
        self._worker: Worker | None = None
        self._handshake: McHandshake | None = None
        _refuse(vllm_config, kv_cache_config)
        if role == base.KVConnectorRole.SCHEDULER:
            if transfer.kv_load_failure_policy != 'recompute':
                logger.error('kv_load_failure_policy is %r: a request whose block is lost in the '
                             'pool will fail; set "kv_load_failure_policy": "recompute" in '
                             '--kv-transfer-config', transfer.kv_load_failure_policy)
            self._open_scheduler(transfer)

    # ---- both

    def _open_pool(self, part: str) -> Pool:
        chosen = self._settings
        name = f"{chosen.name or f'vllm-{socket.gethostname()}'}-{os.getpid()}-{part}"
        # The store verifies a sample of what it reads from this host by itself.
        options = {'verify': 'always', **chosen.options}
        return Pool(name, chosen.master, options, chosen.timeout)

    def shutdown(self) -> None:
        """Ends within 3 seconds."""
        if self._lookups is not None:
            self._lookups.close(1.0)
        if self._pool is not None:
            self._pool.close(1.5)
        self._lookups = self._pool = None

    def get_kv_connector_stats(self) -> McStats | None:
        """What was counted since the last look."""
        data = self._counters.take()
        return None if data is None else McStats(data=data)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> McStats:
        """Of what get_kv_connector_stats gave in another process."""
        return McStats(data=metrics.empty() if data is None else data)

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any, labelnames: list[str],
                           per_engine_labelvalues: Any) -> McPromMetrics:
        """mc:... at vLLM's /metrics."""
        return McPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # ---- scheduler

    def _open_scheduler(self, transfer: Any) -> None:
        chosen = self._settings
        self._pool = self._open_pool('scheduler')
        self._lookups = Lookups(self._pool.match, chosen.lookup_patience, self._counters.looked_up)
        self._scopes: dict[str, list[bytes]] = {}
        self._fingerprint = ''
        self._ranks: list[str] = []
        self._adapters = Adapters(self._adapter_doubted)
        self._scheduler = Scheduler(
            self._config.cache_config.block_size,
            self._look_up,
            self._scope_of,
            hash_block_size=getattr(self._cache, 'hash_block_size', None),
            load=chosen.load != 'off' and transfer.is_kv_consumer,
            save=chosen.save != 'off' and transfer.is_kv_producer,
            save_decoded=chosen.save_decoded,
            wait=chosen.wait,
        )

    def _look_up(self, request: str, scope: str, hashes: bytes, count: int) -> int | None:
        assert self._lookups is not None
        prefixes = self._scopes.get(scope)
        if prefixes is None:
            prefixes = [keys.prefix(scope, rank) for rank in self._ranks]
            self._scopes[scope] = prefixes
        return self._lookups.ask(request, prefixes, hashes, count)

    def _scope_of(self, request: Any) -> str:
        adapter = request.lora_request
        if adapter is None or not self._fingerprint:
            return self._fingerprint
        own = self._adapters.scope(adapter)
        return f'{self._fingerprint}+{own}' if own else ''

    def _adapter_doubted(self, adapter: Any, why: str) -> None:
        logger.warning('mc: the KV of LoRA adapter %s is not shared: %s', adapter.lora_name, why)
        assert self._scheduler is not None
        self._scheduler.unshare(adapter)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        """Of all workers. Nothing is looked up or saved before."""
        order = sorted(metadata)
        rows = {metadata[rank].rank: metadata[rank].rows for rank in order}
        if len(rows) != len(order):
            raise ValueError(f'mc.vllm: two workers say that they are one rank: {sorted(rows)}')
        if not all(own.rows['weights'] for own in metadata.values()):
            logger.error('mc: shares nothing: nothing tells the weights of %s from others; serve '
                         'the model from a folder', self._config.model_config.model)
            return
        rows['hashes'] = _hash_rows(self._config)
        self._ranks = [metadata[rank].rank for rank in order]
        self._fingerprint = keys.fingerprint(rows)
        logger.info('mc: blocks are shared with engines of fingerprint %s', self._fingerprint)
        # For mc.doctor; a master that is not there does not hold up the start.
        told = {**metadata[order[0]].rows, 'hashes': rows['hashes'], 'ranks': self._ranks}
        pool, key = self._pool, f'vllm-fingerprint:{self._fingerprint}'
        assert pool is not None
        self._teller = threading.Thread(target=pool.tell, args=(key, json.dumps(told).encode()),
                                        name='mc-fingerprint', daemon=True)
        self._teller.start()

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        """Of the workers of one pipeline stage."""
        self.set_xfer_handshake_metadata_pp_aware({(0, rank): of for rank, of in metadata.items()})

    @property
    def requires_kv_delivery(self) -> bool:
        """A lost save is a miss, and no more."""
        return False

    def get_num_new_matched_tokens(self, request: Any,
                                   num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens that can be loaded beyond these, and whether they are."""
        assert self._scheduler is not None
        found = self._scheduler.matched(request, num_computed_tokens)
        return found, bool(found)

    def update_state_after_alloc(self, request: Any, blocks: Any,
                                 num_external_tokens: int) -> None:
        """The request has its blocks; so many tokens of them are to be loaded."""
        assert self._scheduler is not None
        if num_external_tokens > 0:
            ids = blocks.get_block_ids()[0]
            self._scheduler.allocated(request, ids, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> McMetadata:
        """What the workers do in this step."""
        assert self._scheduler is not None
        return McMetadata(self._scheduler.plan(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        """What the workers said after a step."""
        assert self._scheduler is not None
        self._scheduler.received(connector_output.finished_recving or (),
                                 connector_output.invalid_block_ids)
        told = connector_output.kv_connector_worker_meta
        if isinstance(told, McWorkerMetadata):
            self._scheduler.lost(told.lost)

    def request_finished(self, request: Any,
                         block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Whether its blocks must stay until get_finished() names it, and what a proxy passes on to
        the engine that decodes."""
        assert self._scheduler is not None and self._lookups is not None
        self._lookups.forget(request.request_id)
        told = getattr(request, 'kv_transfer_params', None) or {}
        pair = None
        if told.get('do_remote_decode'):
            pair = {'do_remote_prefill': True, 'do_remote_decode': False,
                    'mc': {'fingerprint': self._fingerprint,
                           'prompt_tokens': request.num_prompt_tokens}}
        return self._scheduler.finished(request, block_ids), pair

    def request_finished_all_groups(
            self, request: Any,
            block_ids: tuple[list[int], ...]) -> tuple[bool, dict[str, Any] | None]:
        """As request_finished."""
        return self.request_finished(request, block_ids[0])

    def reset_cache(self) -> bool:
        """The weights may be others: nothing stored before is found, and requests that began before
        store no more. From then on this server's scope is its own."""
        assert self._scheduler is not None
        self._scheduler.reset()
        self._adapters.reset()
        self._scopes.clear()
        if self._fingerprint:
            self._fingerprint = f"{self._fingerprint.split('-')[0]}-{secrets.token_hex(8)}"
            logger.info("mc: vLLM's cache was reset: blocks are shared with no other engine, under "
                        'fingerprint %s', self._fingerprint)
        return True

    # ---- worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Opens the pool for the memory of these tensors."""
        blocks = self._cache.num_blocks
        regions = layout.regions_of(kv_caches, blocks)
        self._pool = self._open_pool(f'worker-{self._config.parallel_config.rank}')
        self._pool.register(regions, blocks)
        if self._settings.offer:
            self._pool.offer(self._settings.offer // self._config.parallel_config.world_size)
        label = _rank_label(self._config)
        size = layout.block_bytes(regions)
        self._worker = Worker(
            self._pool, label, size,
            save_queue=self._settings.save_queue,
            save_waits=self._settings.save == 'sync',
            observe=self._counters.moved,
            code_name=self._pool.code_name,
        )
        rows = keys.model_rows(self._config, vllm.__version__)
        rows['layers'] = layout.describe(kv_caches, blocks)
        rows['attention'] = _attention_rows(self._config, kv_caches, self._settings.trust_layout)
        self._handshake = McHandshake(label, rows)
        logger.info('mc: %d blocks of %d bytes in %d regions', blocks, size, len(regions))

    def get_handshake_metadata(self) -> McHandshake | None:
        """For set_xfer_handshake_metadata."""
        return self._handshake

    def _plan(self) -> Plan | None:
        if self._worker is None or not self.has_connector_metadata():
            return None
        return self._get_connector_metadata().plan

    def handle_preemptions(self, kv_connector_metadata: McMetadata) -> None:
        """Before a step: saves of what it overwrites end first."""
        if self._worker is not None:
            self._worker.before(kv_connector_metadata.plan)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Submits the loads of the step."""
        plan = self._plan()
        if plan is not None and plan.loads:
            self._worker.load(plan)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: a request runs when all its layers are loaded."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any,
                      **kwargs: Any) -> None:
        """Nothing: blocks are saved with all their layers."""

    def wait_for_save(self) -> None:
        """After the forward pass: submits the saves of the step."""
        plan = self._plan()
        if plan is not None:
            self._worker.save(plan)

    def get_finished(self,
                     finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Requests whose saves, and requests whose loads, have ended."""
        self._invalid: set[int] = set()
        if self._worker is None:
            return None, None
        plan = self._plan()
        idle = plan is not None and plan.idle
        if plan is not None and idle:
            # vLLM 0.29 does not call wait_for_save in a step without a forward pass.
            self._worker.save(plan)
        outcome = self._worker.finished(idle)
        self._invalid = outcome.invalid
        return outcome.sent or None, outcome.received or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Of the loads that get_finished() has just told of."""
        return self.__dict__.pop('_invalid', set())

    def build_connector_worker_meta(self) -> McWorkerMetadata | None:
        """For update_connector_output."""
        lost = self._worker.lost() if self._worker is not None else []
        return McWorkerMetadata(lost) if lost else None


def _refuse(config: Any, cache: Any) -> None:
    """Raises ValueError on what would give wrong tokens, or is not done yet."""
    groups = cache.kv_cache_groups
    if len(groups) > 1:
        raise ValueError(f'mc.vllm takes models with one KV cache group; this one has '
                         f'{len(groups)}')
    for group in groups:
        kind = type(group.kv_cache_spec).__name__
        if kind not in ('FullAttentionSpec', 'MLAAttentionSpec'):
            raise ValueError(f'mc.vllm takes models with full attention only; this one has '
                             f'{kind}')
    parallel = config.parallel_config
    for name in ('decode_context_parallel_size', 'prefill_context_parallel_size'):
        if getattr(parallel, name, 1) > 1:
            raise ValueError(f'mc.vllm does not take {name} > 1')
    speculative = config.speculative_config
    method = getattr(speculative, 'method', None)
    if speculative is not None and method not in ('ngram', 'ngram_gpu', 'suffix'):
        raise ValueError(f'mc.vllm does not take speculative decoding by {method}: the KV of the '
                         f'draft model would be saved before it is computed')
    algorithm = str(config.cache_config.prefix_caching_hash_algo)
    if not algorithm.startswith('sha256'):
        raise ValueError(f'--prefix-caching-hash-algo {algorithm} is not fit to be shared between '
                         f'engines; use sha256_cbor or sha256')


def _hash_rows(config: Any) -> list[str]:
    """What hashes of equal tokens depend on: other hashes are never found, and this says why."""
    algorithm = str(config.cache_config.prefix_caching_hash_algo)
    python = '.'.join(platform.python_version_tuple()[:2]) if algorithm == 'sha256' else ''
    return [algorithm, python, os.environ.get('PYTHONHASHSEED', '')]


def _attention_rows(config: Any, caches: dict[str, Any], trust: bool) -> list[list[str]]:
    """Backend and, on a CPU, instruction set of each layer: kernels lay keys out by it."""
    context = config.compilation_config.static_forward_context
    rows = []
    for name in caches:
        layer = context.get(name)
        backend = ''
        with contextlib.suppress(Exception):
            backend = layer.get_attn_backend().get_name()
        isa = str(getattr(layer, 'isa', ''))
        if backend.startswith('CPU') and isa:
            with contextlib.suppress(Exception):
                import torch

                isa += '/' + torch.backends.cpu.get_cpu_capability()
        elif not trust:
            raise ValueError(f'mc.vllm has not been tried with the attention backend of {name} (it '
                             f"says {backend or 'nothing'}, instruction set {isa or 'unknown'}); "
                             f'"trust-layout": true shares its blocks all the same')
        rows.append([backend, isa])
    return rows


def _rank_label(config: Any) -> str:
    parallel = config.parallel_config
    tp_size, pp_size = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    rank = parallel.rank % (tp_size * pp_size)
    return keys.rank_label(rank % tp_size, tp_size, rank // tp_size, pp_size)


def _register() -> None:
    """MultiConnector looks its children up by name when it reads what they counted."""
    with contextlib.suppress(ValueError):  # it is known already
        KVConnectorFactory.register_connector('McConnector', 'mc.vllm', 'McConnector')


_register()
