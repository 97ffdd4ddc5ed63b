"""Extractors: the plug-ins that choose what is taken from the pages of data sources.

Names, parameters and defaults are llm-d-router's.
"""

from typing import ClassVar

import msgspec

from epp.config.data_sources import Content
from epp.model.endpoint import MULTICLUSTER_KV_USAGE, MULTICLUSTER_QUEUE_SIZE, attribute_key
from epp.policy.attributes import CORE_EXTRACTOR
from epp.policy.plugins import PluginParameters
from epp.protocol.metrics.attribute_reader import DCGM, AttributeMetric
from epp.protocol.metrics.metric_names import (
    ENGINE_LABELS,
    ENGINES,
    EngineCatalog,
    EngineMetrics,
    Metric,
)
from epp.protocol.metrics.metric_specs import engine_of, of_cache, parse_spec

_RESERVED = "default"
_POOL_KV_USAGE = "llm_d_epp_average_kv_cache_utilization"
_POOL_QUEUE_SIZE = "llm_d_epp_average_queue_size"


class CustomMetric(PluginParameters, frozen=True):
    """A metric that becomes an attribute of endpoints."""

    attribute_key: str
    metric_spec: str

    def __post_init__(self) -> None:
        if not self.attribute_key:
            raise ValueError("`attributeKey` is empty")
        if parse_spec(self.metric_spec) is None:
            raise ValueError("`metricSpec` is empty")


class EngineConfig(PluginParameters, frozen=True):
    """The metrics of one kind of model server.

    A specification is `name` or `name{label=value,...}`; an empty one: it has no such metric.
    """

    name: str
    """The engine's name, as the label of its pods has it."""
    queued_requests_spec: str = ""
    """Requests that wait."""
    running_requests_spec: str = ""
    """Requests that run."""
    kv_usage_spec: str = ""
    """The used share of the KV cache."""
    lora_spec: str = ""
    """The adapters that are loaded, as labels."""
    cache_info_spec: str = ""
    """The size and number of blocks, as labels."""
    cache_block_size_label_name: str = ""
    """The label of `cache_info_spec` with the tokens of a block."""
    cache_num_blocks_label_name: str = ""
    """The label of `cache_info_spec` with the number of blocks."""
    cache_block_size_spec: str = ""
    """The tokens of a block; it goes before the label."""
    cache_num_blocks_spec: str = ""
    """The number of blocks; it goes before the label."""
    custom_metrics: list[CustomMetric] = []
    """Metrics that become attributes of the endpoint."""

    def __post_init__(self) -> None:
        if not self.name or self.name == _RESERVED:
            problem = "empty" if not self.name else f"`{_RESERVED}`, which is reserved"
            raise ValueError(f"the engine's `name` is {problem}")
        keys = [each.attribute_key for each in self.custom_metrics]
        if repeated := {key for key in keys if keys.count(key) > 1}:
            raise ValueError(f"attributeKey `{min(repeated)}` is listed twice")
        self.specs()

    def specs(self) -> EngineMetrics:
        """Return the metrics. Raises `ValueError` for one that is malformed, with its field."""
        found: dict[str, Metric | None] = {}
        for field in msgspec.structs.fields(EngineConfig):
            if field.name.endswith("_spec"):
                try:
                    found[field.name] = parse_spec(getattr(self, field.name))
                except ValueError as error:
                    raise ValueError(f"`{field.encode_name}`: {error}") from None
        info, usage = found["cache_info_spec"], found["kv_usage_spec"]
        size = self.cache_block_size_label_name or "block_size"
        number = self.cache_num_blocks_label_name or "num_gpu_blocks"
        return EngineMetrics(
            name=self.name,
            signs=(),
            waiting=found["queued_requests_spec"],
            running=found["running_requests_spec"],
            kv_usage=() if usage is None else (usage,),
            adapters=found["lora_spec"],
            block_size=of_cache(found["cache_block_size_spec"], info, size),
            num_blocks=of_cache(found["cache_num_blocks_spec"], info, number),
            attributes=tuple(
                (attribute_key(each.attribute_key, CORE_EXTRACTOR), metric)
                for each in self.custom_metrics
                if (metric := parse_spec(each.metric_spec)) is not None
            ),
        )


class CoreMetricsExtractor(PluginParameters, frozen=True):
    """Reads the load of endpoints, by the metrics of their engines.

    An endpoint's engine is named by its label `engine_label_key`, or by the deprecated label;
    without both it is the one whose metrics are on its page, and `default_engine` is tried first.
    An engine in `engine_configs` replaces the built-in one of the same name.
    """

    content: ClassVar[Content] = "metrics"

    engine_label_key: str = ENGINE_LABELS[0]
    default_engine: str = "vllm"
    engine_configs: list[EngineConfig] = []

    def __post_init__(self) -> None:
        names = [each.name for each in self.engine_configs]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"the engine `{min(repeated)}` is listed twice in `engineConfigs`")
        known = {*names, *ENGINES}
        if self.default_engine and self.default_engine not in known:
            listed = ", ".join(f"`{name}`" for name in sorted(known))
            raise ValueError(
                f"`defaultEngine` is `{self.default_engine}`, which is not one of {listed}"
            )

    def catalog(self) -> EngineCatalog:
        """Return the engines, in the order in which a page is matched."""
        own = {each.name: engine_of(each.specs()) for each in self.engine_configs}
        engines = {**own, **{name: each for name, each in ENGINES.items() if name not in own}}
        first = engines[self.default_engine or "vllm"]
        label = self.engine_label_key or ENGINE_LABELS[0]
        return EngineCatalog([first, *engines.values()], (label, ENGINE_LABELS[1]))


class NumbersExtractor(PluginParameters, frozen=True):
    """Reads single numbers into attributes of endpoints."""

    content: ClassVar[Content] = "metrics"

    def metrics(self) -> tuple[AttributeMetric, ...]:
        """Return which numbers become which attributes."""
        return ()


class DcgmExtractor(NumbersExtractor, frozen=True):
    """Reads how busy the GPUs of an endpoint are, in 0..1."""

    def metrics(self) -> tuple[AttributeMetric, ...]:
        """Return which numbers become which attributes."""
        return (DCGM,)


class MulticlusterMetricsExtractor(NumbersExtractor, frozen=True, rename="camel"):
    """Reads what another cluster's picker reports of its pool."""

    kv_cache_utilization_metric: str = _POOL_KV_USAGE
    queue_size_metric: str = _POOL_QUEUE_SIZE

    def __post_init__(self) -> None:
        self.metrics()

    def metrics(self) -> tuple[AttributeMetric, ...]:
        """Return which numbers become which attributes. Raises `ValueError`."""
        named = (
            (MULTICLUSTER_KV_USAGE, self.kv_cache_utilization_metric or _POOL_KV_USAGE),
            (MULTICLUSTER_QUEUE_SIZE, self.queue_size_metric or _POOL_QUEUE_SIZE),
        )
        parsed = ((key, parse_spec(spec)) for key, spec in named)
        return tuple(AttributeMetric(key, metric) for key, metric in parsed if metric)


class ModelsExtractor(PluginParameters, frozen=True):
    """Reads which models an endpoint serves."""

    content: ClassVar[Content] = "models"

    refuse_unlisted: bool | None = None
    """None means true, or false beside a models-responder, as in llm-d-router."""
