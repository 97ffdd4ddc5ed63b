"""First tokens at 120 % of what the pods can serve, and of clients beside others, as a PNG."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bench.chart import GOOD, OTHER, drawing, png
from bench.hold.beside import (
    ALONE,
    FLOODED,
    INTERACTIVE,
    WITH_BATCH,
    WITHOUT_BATCH,
)
from bench.hold.beside import GOOD as TENANT
from bench.hold.loads import HOLDING, LOADS, SECONDS
from bench.hold.loads import OTHER as POLICY
from bench.hold.runs import Got, Result
from epp.replay.results.measures import percentile
from epp.replay.results.style import in_seconds, short_seconds

_HIGHEST = max(LOADS)
_POLICIES = ((POLICY, OTHER), (HOLDING, GOOD))
_BIN_SECONDS = 20.0
_NARROW = 10.0
"""An axis that does not span as much has more marks."""
_BESIDE = (
    ("beside a flood", TENANT, ((ALONE, OTHER), (FLOODED, GOOD))),
    ("beside batches", INTERACTIVE, ((WITHOUT_BATCH, OTHER), (WITH_BATCH, GOOD))),
)


def draw(results: Mapping[str, Result]) -> bytes:
    """Draw the runs of one seed by their names."""
    with drawing(8.6, 6.0) as figure:
        (shares, times), (flood, batch) = figure.subplots(2, 2)
        for policy, colour in _POLICIES:
            (got,) = results[f"{policy} {_HIGHEST}"].values()
            _shares(shares, got, colour, policy)
            _over_time(times, got, colour)
        shares.set(title=f"Requests at {_HIGHEST} % of capacity")
        times.set(title="Their median, by arrival", xlabel="minutes", yscale="log")
        in_seconds(times.yaxis)
        for axes, (title, client, pair) in zip((flood, batch), _BESIDE, strict=True):
            for name, colour in pair:
                _shares(axes, results[name][client], colour, name)
            axes.set(title=f"A client {title}")
        for axes in (shares, flood, batch):
            axes.set(xlabel="first token after", ylabel="share of requests")
            axes.legend(loc="lower right", fontsize=8.5)
        return png(figure)


def _shares(axes: Axes, got: Got, colour: str, label: str) -> None:
    waits = sorted(seconds for _, seconds in got.first_tokens)
    shares = [(rank + 1) / len(waits) for rank in range(len(waits))]
    axes.step(waits, shares, where="post", color=colour, lw=1.8, label=label)
    axes.set(xscale="log", ylim=(0, 1.02))
    narrow = waits[-1] < _NARROW * waits[0]
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5) if narrow else (1,), numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_seconds(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _over_time(axes: Axes, got: Got, colour: str) -> None:
    came = [each for each in sorted(got.first_tokens) if each[0] < SECONDS]
    bins = groupby(came, lambda each: each[0] // _BIN_SECONDS)
    drawn: list[tuple[float, float]] = []
    for number, part in bins:
        values: Sequence[float] = [seconds for _, seconds in part]
        drawn.append(((number + 0.5) * _BIN_SECONDS / 60, percentile(values, 50)))
    axes.plot(*zip(*drawn, strict=True), color=colour, lw=1.8)
