"""The measures of a run: the names, labels and units of its figures, and how they are written."""

import math
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple


class Unit(Enum):
    """What a figure counts."""

    SECONDS = "s"
    SHARE = "share"
    """0..1, shown in percent."""
    RATE = "1/s"
    FACTOR = "factor"
    COUNT = "count"


class Better(Enum):
    """In which direction a figure is better."""

    LESS = "less"
    MORE = "more"
    NEITHER = "neither"


class Measure(NamedTuple):
    """A figure: its name in `Digest.figures`, its label, the short one of a table's column."""

    name: str
    label: str
    short: str
    unit: Unit
    better: Better = Better.LESS
    latency: bool = False
    """Measured over answered requests only, so it flatters policies that answer fewer."""


_S, _P, _R, _F, _C = Unit.SECONDS, Unit.SHARE, Unit.RATE, Unit.FACTOR, Unit.COUNT
_MORE, _NEITHER = Better.MORE, Better.NEITHER

MEASURES: tuple[Measure, ...] = (
    Measure("ttft_mean", "TTFT mean", "TTFT mean", _S, latency=True),
    Measure("ttft_p50", "TTFT p50", "p50", _S, latency=True),
    Measure("ttft_p90", "TTFT p90", "p90", _S, latency=True),
    Measure("ttft_p99", "TTFT p99", "p99", _S, latency=True),
    Measure("tpot_mean", "TPOT mean", "TPOT mean", _S, latency=True),
    Measure("tpot_p99", "TPOT p99", "TPOT p99", _S, latency=True),
    Measure("end_to_end_mean", "End to end mean", "E2E mean", _S, latency=True),
    Measure("end_to_end_p99", "End to end p99", "E2E p99", _S, latency=True),
    Measure("refused", "Requests refused", "refused", _C),
    Measure("lost", "Requests lost", "lost", _C),
    Measure("unfinished", "Requests unfinished", "unfin.", _C),
    Measure("goodput_share", "Requests within the SLO", "in SLO", _P, _MORE),
    Measure("goodput_per_s", "Goodput, requests/s", "good/s", _R, _MORE),
    Measure("requests_per_s", "Served, requests/s", "served/s", _R, _MORE),
    Measure("output_per_s", "Generated, tokens/s", "tok/s", _R, _MORE),
    Measure("cached_ratio", "Prompt tokens cached", "cached", _P, _MORE),
    Measure("reusable_ratio", "In an infinite cache", "infinite", _P, _NEITHER),
    Measure("cached_of_reusable", "Of what an infinite cache has", "of inf.", _P, _MORE),
    Measure("imbalance", "Imbalance (max / mean prefill)", "imbal.", _F),
    Measure("imbalance_windows", "Imbalance within a minute", "in 60 s", _F),
    Measure("preemptions", "Preemptions", "preempt", _C),
    Measure("queue_mean", "Waiting for an engine, mean", "queue", _S, latency=True),
    Measure("prefill_mean", "Computing the prompt, mean", "prefill", _S, latency=True),
    Measure("decode_mean", "Generating, mean", "decode", _S, latency=True),
    Measure("cached_over", "Predicted cached, too many", "over", _P),
    Measure("cached_under", "Predicted cached, too few", "under", _P),
    Measure("ttft_error", "Predicted TTFT, median error", "TTFT err", _P),
    Measure("ttft_bias", "Predicted TTFT, bias", "bias", _P, _NEITHER),
)
"""In the order of tables. Shares of prediction errors are of all prompt tokens, or of the TTFT."""

BY_NAME: Mapping[str, Measure] = {measure.name: measure for measure in MEASURES}


def percentile(values: Iterable[float], percent: float) -> float:
    """Return a percentile, interpolated linearly between ranks; nan without values."""
    return percentiles(values, [percent])[0]


def percentiles(values: Iterable[float], percents: Iterable[float]) -> list[float]:
    """Return the percentiles, interpolated linearly between ranks; nan without values."""
    ordered = sorted(values)
    if not ordered:
        return [math.nan for _ in percents]
    found = []
    for percent in percents:
        position = (len(ordered) - 1) * percent / 100
        low, high = math.floor(position), math.ceil(position)
        found.append(ordered[low] + (ordered[high] - ordered[low]) * (position - low))
    return found


def ratio(part: float, whole: float) -> float:
    """Return part / whole; nan if the whole is 0."""
    return part / whole if whole else math.nan


def mean(values: Iterable[float]) -> float:
    """Return the mean, independent of the order; nan without values."""
    listed = list(values)
    return ratio(math.fsum(listed), len(listed))


def format_figure(name: str, value: float) -> str:
    """Return a figure as text with its unit, a dash for nan."""
    return format_value(value, BY_NAME[name].unit)


def format_value(value: float, unit: Unit) -> str:
    """Return a value as text with its unit, a dash for nan."""
    return "-" if math.isnan(value) else _WRITTEN[unit](value)


def _seconds(value: float) -> str:
    if abs(value) >= 0.9995:  # noqa: PLR2004 (what is written "1.00 s")
        return f"{_digits(value)} s"
    return f"{_digits(value * 1000)} ms"


def _share(value: float) -> str:
    percent = value * 100
    return f"{percent:.0f} %" if abs(percent) >= 99.95 else f"{percent:.1f} %"  # noqa: PLR2004


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def _digits(value: float) -> str:
    """Return a number with three significant digits, from 100 on without decimals."""
    whole = len(str(int(abs(value))))
    return f"{value:,.{max(0, 3 - whole)}f}"


_WRITTEN = {
    Unit.SECONDS: _seconds,
    Unit.SHARE: _share,
    Unit.RATE: _digits,
    Unit.FACTOR: lambda value: f"{value:.2f}",
    Unit.COUNT: _count,
}
