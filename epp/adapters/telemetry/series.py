"""The exposition of what was counted, under more than one name.

The text is written here because prometheus_client takes some 10 µs a line, and a page has 400
lines for every model: the event loop would stand still for it.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Literal

import msgspec

from epp.adapters.telemetry.histogram import Histogram

Labels = tuple[str, ...]


class DeprecatedAlias(msgspec.Struct, frozen=True):
    """A deprecated name of a family, with its labels as (name here, name in the family)."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """One metric: its name, its help, its labels in order, and its deprecated twin."""

    name: str
    help: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: Labels = ()
    twin: DeprecatedAlias | None = None


class FamilyText(msgspec.Struct, frozen=True):
    """The lines of one family, less its two head lines."""

    family: Family
    lines: str

    def text(self, *, openmetrics: bool) -> str:
        """Write the whole; OpenMetrics knows a counter without its `_total`."""
        name, kind = self.family.name, self.family.kind
        if openmetrics and kind == "counter":
            name = name.removesuffix("_total")
        return f"# HELP {name} {self.family.help}\n# TYPE {name} {kind}\n{self.lines}"


Value = float | Histogram
Samples = Iterable[tuple[Labels, Value]]


def expose(family: Family, samples: Samples) -> Iterator[FamilyText]:
    """Give a family and its twin; nothing without a sample.

    Where the twin has fewer labels, samples that differ in the others only are added up.
    """
    values = dict(samples)
    if not values:
        return
    yield _block(family, values)
    if family.twin is not None:
        kept = [family.labels.index(source) for _, source in family.twin.labels]
        twin = Family(
            name=family.twin.name,
            help=f"Deprecated: use {family.name}. {family.help}",
            kind=family.kind,
            labels=tuple(name for name, _ in family.twin.labels),
        )
        yield _block(twin, _added_up(values, kept))


def _added_up(values: Mapping[Labels, Value], kept: Sequence[int]) -> dict[Labels, Value]:
    added: dict[Labels, Value] = {}
    for labels, value in values.items():
        key = tuple(labels[position] for position in kept)
        match added.get(key), value:
            case Histogram() as known, Histogram():
                added[key] = known + value
            case (int() | float()) as known, (int() | float()):
                added[key] = known + value
            case _:
                added[key] = value
    return added


def _block(family: Family, values: Mapping[Labels, Value]) -> FamilyText:
    lines: list[str] = []
    for labels, value in values.items():
        pairs = zip(family.labels, labels, strict=True)
        text = ",".join(f'{name}="{_escaped(label)}"' for name, label in pairs)
        if isinstance(value, Histogram):
            lines += _histogram(family.name, text, value)
        else:
            lines.append(f"{_series(family.name, text)} {_number(value)}\n")
    return FamilyText(family, "".join(lines))


def _histogram(name: str, labels: str, value: Histogram) -> Iterator[str]:
    start = f"{name}_bucket{{{labels},le=" if labels else f"{name}_bucket{{le="
    counts = list(accumulate(value.counts))
    for end, count in zip(_ends(value.bounds), counts, strict=True):
        yield f'{start}"{end}"}} {count}\n'
    if value.bounds[0] >= 0:  # a sum that can fall is no counter: OpenMetrics forbids it
        yield f"{_series(f'{name}_count', labels)} {counts[-1]}\n"
        yield f"{_series(f'{name}_sum', labels)} {_number(value.total)}\n"


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
def _ends(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return (*map(_number, bounds), "+Inf")


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
