from dataclasses import dataclass, field


@dataclass
class KVConnectorStats:
    data: dict = field(default_factory=dict)


class KVConnectorPromMetrics:
    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        self._histogram_cls = metric_types['Histogram']
        self._counter_cls = metric_types['Counter']
