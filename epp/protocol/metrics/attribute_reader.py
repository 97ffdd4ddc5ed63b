"""Reads single numbers from the pages of one endpoint, for `Load.attributes`."""

from collections.abc import Generator, Mapping, Sequence

import msgspec

from epp.model.endpoint import DCGM_EXTRACTOR, attribute_key
from epp.protocol.metrics.metric_names import Metric
from epp.protocol.metrics.page import Page

GPU_UTILIZATION = attribute_key("GPUUtilization", DCGM_EXTRACTOR)
"""A key of `Load.attributes` (llm-d-router)."""

_POD = b"pod"


class AttributeMetric(msgspec.Struct, frozen=True):
    """Which number of a page becomes which attribute: that of the first sample, times `scale`.

    With `of_pod` it is the greatest of the samples that are of the endpoint's pod by their label
    `pod`, or of none in particular.
    """

    key: str
    metric: Metric
    scale: float = 1.0
    of_pod: bool = False

    @property
    def labels(self) -> frozenset[bytes]:
        """The labels of samples that are read."""
        return frozenset((*(label for label, _ in self.metric.where), *([_POD] * self.of_pod)))


# NVIDIA DCGM Exporter: percent of the time, of each GPU; `pod` is the pod that has the GPU.
DCGM = AttributeMetric(
    GPU_UTILIZATION, Metric(b"DCGM_FI_DEV_GPU_UTIL", most=100.0), scale=0.01, of_pod=True
)


class FoundAttributes(msgspec.Struct, frozen=True):
    """The attributes that a page has, by key; `warnings` to log, each returned once."""

    attributes: Mapping[str, float]
    warnings: tuple[str, ...] = ()


class AttributeReader:
    """Reads the pages of one endpoint. Never raises; what a page lacks is left out."""

    def __init__(self, metrics: Sequence[AttributeMetric]) -> None:
        self._metrics = metrics
        self._missed: set[str] = set()

    def steps(self, page: Page, pod: str) -> Generator[None, None, FoundAttributes]:
        """Read a page that shows `pod`; yield after each step of at most some milliseconds."""
        found: dict[str, float] = {}
        for each in self._metrics:
            value = yield from _value(page, each, pod.encode())
            if value is not None:
                found[each.key] = value * each.scale
        missed = [each for each in self._metrics if each.key not in found]
        warnings = tuple(
            f"its page has no {each.metric} that can be {each.key}"
            for each in missed
            if each.key not in self._missed
        )
        self._missed.update(each.key for each in missed)
        return FoundAttributes(found, warnings)


def _value(page: Page, each: AttributeMetric, pod: bytes) -> Generator[None, None, float | None]:
    metric, highest = each.metric, None
    for sample in page.samples(metric.family, each.labels):
        if sample is None:
            yield
            continue
        value, pairs = sample
        if not metric.least <= value <= metric.most:
            continue
        if any(pairs.get(label) != wanted for label, wanted in metric.where):
            continue
        if not each.of_pod:
            return value
        if pairs.get(_POD, pod) == pod and (highest is None or value > highest):
            highest = value
    return highest
