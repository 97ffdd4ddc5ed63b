"""Cheap accumulators, and their exposition under more than one name.

An observation is one bisection and two additions; all that Prometheus wants beyond that
(cumulative buckets, label names, deprecated twins) is worked out when somebody asks.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Literal

import msgspec
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]


class Distribution:
    """Counts of values by bucket; `bounds` are the buckets' inclusive upper ends, ascending."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def __add__(self, other: "Distribution") -> "Distribution":
        added = Distribution(self.bounds)
        added.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        added.total = self.total + other.total
        return added

    def buckets(self) -> list[tuple[str, float]]:
        """Give the cumulative counts by upper end, as the exposition format has them."""
        ends = [*map(floatToGoString, self.bounds), "+Inf"]
        return list(zip(ends, accumulate(self.counts), strict=True))


class Twin(msgspec.Struct, frozen=True):
    """A deprecated name of a family, with its labels as (name here, name in the family)."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """One metric: its name, its help, its labels in order, and its deprecated twin."""

    name: str
    help: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: Labels = ()
    twin: Twin | None = None


Samples = Iterable[tuple[Labels, "float | Distribution"]]


def expose(family: Family, samples: Samples) -> Iterator[Metric]:
    """Give a family, and its twin, as prometheus_client wants them; nothing without a sample.

    Where the twin has fewer labels, samples that differ in the others only are added up.
    """
    samples = list(samples)
    if not samples:
        return
    yield _metric(family, family.name, family.labels, dict(samples))
    if family.twin is not None:
        names = tuple(name for name, _ in family.twin.labels)
        kept = [family.labels.index(source) for _, source in family.twin.labels]
        yield _metric(family, family.twin.name, names, _added_up(samples, kept))


def _added_up(samples: Samples, kept: Sequence[int]) -> dict[Labels, "float | Distribution"]:
    added: dict[Labels, float | Distribution] = {}
    for labels, value in samples:
        key = tuple(labels[position] for position in kept)
        known = added.get(key)
        match known, value:
            case Distribution(), Distribution():
                added[key] = known + value
            case int() | float(), int() | float():
                added[key] = known + value
            case _:
                added[key] = value
    return added


def _metric(
    family: Family, name: str, labels: Labels, values: Mapping[Labels, "float | Distribution"]
) -> Metric:
    text = family.help if name == family.name else f"Deprecated: use {family.name}. {family.help}"
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(name, text, labels=labels)
        for key, value in values.items():
            if isinstance(value, Distribution):
                histogram.add_metric(key, value.buckets(), value.total)
        return histogram
    make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = make(name, text, labels=labels)
    for key, value in values.items():
        if not isinstance(value, Distribution):
            metric.add_metric(key, value)
    return metric
