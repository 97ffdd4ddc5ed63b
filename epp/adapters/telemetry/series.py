"""Writes metrics in Prometheus text format 0.0.4 and OpenMetrics 1.0, with deprecated aliases.

prometheus_client would take some 10 µs per line, and a page has 400 lines per model, for which
the event loop would stand still.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Literal

import msgspec

from epp.adapters.telemetry.histogram import Histogram

Labels = tuple[str, ...]

_MAX_LINES = 500
"""Lines that are written at a time: a millisecond of a slow machine."""


class DeprecatedAlias(msgspec.Struct, frozen=True):
    """A deprecated name of a family; its labels are pairs of (name here, name in the family)."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()


def alias_of(name: str, *labels: str) -> DeprecatedAlias:
    """Return a deprecated name; a label is `name`, or `name=name_in_the_family`."""
    pairs = (label.partition("=") for label in labels)
    return DeprecatedAlias(name, tuple((here, there or here) for here, _, there in pairs))


class Family(msgspec.Struct, frozen=True):
    """One metric family, with its label names in order."""

    name: str
    help: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: Labels = ()
    alias: DeprecatedAlias | None = None


def counter(name: str, text: str, *labels: str, alias: DeprecatedAlias | None = None) -> Family:
    """Return the family of a counter, with its help text and label names."""
    return Family(name, text, "counter", labels, alias)


def gauge(name: str, text: str, *labels: str, alias: DeprecatedAlias | None = None) -> Family:
    """Return the family of a gauge."""
    return Family(name, text, "gauge", labels, alias)


def histogram(name: str, text: str, *labels: str, alias: DeprecatedAlias | None = None) -> Family:
    """Return the family of a histogram."""
    return Family(name, text, "histogram", labels, alias)


class FamilyText(msgspec.Struct, frozen=True):
    """Samples of one family as text: all of them, or some of many."""

    family: Family
    samples: "Sequence[tuple[Labels, Value]]"
    begins: bool = True
    """Whether they are the family's first."""

    def text(self, *, openmetrics: bool) -> str:
        """Return the lines of the samples; before the first ones `# HELP` and `# TYPE`."""
        lines = self.lines(openmetrics=openmetrics)
        if not self.begins:
            return lines
        # OpenMetrics 1.0, "Counter": the family's name has no `_total`, its samples do.
        name, kind = self.family.name, self.family.kind
        if openmetrics and kind == "counter":
            name = name.removesuffix("_total")
        return f"# HELP {name} {self.family.help}\n# TYPE {name} {kind}\n{lines}"

    def lines(self, *, openmetrics: bool = False) -> str:
        """Return the lines of the samples."""
        return "".join(self._lines(openmetrics=openmetrics))

    def _lines(self, *, openmetrics: bool) -> Iterator[str]:
        for labels, value in self.samples:
            pairs = zip(self.family.labels, labels, strict=True)
            text = ",".join(f'{name}="{_escaped(label)}"' for name, label in pairs)
            if isinstance(value, Histogram):
                ends = _ends(value.bounds, openmetrics=openmetrics)
                yield from _histogram(self.family.name, text, value, ends)
            else:
                yield f"{_series(self.family.name, text)} {_number(value)}\n"


Value = float | Histogram
Samples = Iterable[tuple[Labels, Value]]


def expose(family: Family, samples: Samples, forgotten: Samples = ()) -> Iterator[FamilyText]:
    """Yield a family and its alias, some lines at a time; nothing without a sample.

    If the alias has fewer labels, samples that differ only in the others are added up, with those
    that the family itself has `forgotten`.
    """
    values = dict(samples)
    if not values:
        return
    yield from _blocks(family, values)
    if family.alias is not None:
        kept = [family.labels.index(source) for _, source in family.alias.labels]
        alias = Family(
            name=family.alias.name,
            help=f"Deprecated: use {family.name}. {family.help}",
            kind=family.kind,
            labels=tuple(name for name, _ in family.alias.labels),
        )
        yield from _blocks(alias, _added_up([*values.items(), *forgotten], kept))


def _added_up(samples: Samples, kept: Sequence[int]) -> dict[Labels, Value]:
    added: dict[Labels, Value] = {}
    for labels, value in samples:
        key = tuple(labels[position] for position in kept)
        match added.get(key), value:
            case Histogram() as known, Histogram():
                added[key] = known + value
            case (int() | float()) as known, (int() | float()):
                added[key] = known + value
            case _:
                added[key] = value
    return added


def _blocks(family: Family, values: Mapping[Labels, Value]) -> Iterator[FamilyText]:
    samples: list[tuple[Labels, Value]] = []
    lines, begins = 0, True
    for each in values.items():
        if lines >= _MAX_LINES:
            yield FamilyText(family, samples, begins)
            samples, lines, begins = [], 0, False
        samples.append(each)
        lines += len(each[1].bounds) + 3 if isinstance(each[1], Histogram) else 1
    yield FamilyText(family, samples, begins)


def _histogram(name: str, labels: str, value: Histogram, ends: Sequence[str]) -> Iterator[str]:
    start = f"{name}_bucket{{{labels},le=" if labels else f"{name}_bucket{{le="
    counts = list(accumulate(value.counts))
    for end, count in zip(ends, counts, strict=True):
        yield f'{start}"{end}"}} {count}\n'
    if value.bounds[0] >= 0:  # OpenMetrics 1.0: no `_sum` and `_count` with negative buckets
        yield f"{_series(f'{name}_count', labels)} {counts[-1]}\n"
        yield f"{_series(f'{name}_sum', labels)} {_number(value.total)}\n"


def process_text(*, openmetrics: bool) -> str:
    """Return the `process_*` families of this process."""
    # Imported at the first page: it takes long, and is not needed to start.
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest  # noqa: PLC0415
    from prometheus_client.openmetrics import exposition  # noqa: PLC0415

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    write = exposition.generate_latest if openmetrics else generate_latest
    text: str = write(registry).decode()
    return text


def _number(value: float) -> str:
    return _go_float()(value)


@functools.cache
def _go_float() -> Callable[[float], str]:
    from prometheus_client.utils import floatToGoString  # noqa: PLC0415 (slow; a start can do without)

    found: Callable[[float], str] = floatToGoString
    return found


def _series(name: str, labels: str) -> str:
    return f"{name}{{{labels}}}" if labels else name


@functools.cache
def _ends(bounds: tuple[float, ...], *, openmetrics: bool) -> tuple[str, ...]:
    """Return the values of `le`: 1.0 in OpenMetrics, and 1 in text format, as Go writes it there.

    Queries that name a bucket, as those of SLOs do, find the series of llm-d-router's by them.
    """
    # OpenMetrics 1.0, "Considerations: Canonical Numbers".
    ends = map(_number, bounds)
    return (*(ends if openmetrics else (end.removesuffix(".0") for end in ends)), "+Inf")


def _escaped(label: str) -> str:
    # Text format 0.0.4: a label value escapes backslash, newline and quote.
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
