"""First tokens at 120 % of what the pods can serve, and of clients beside others, as a PNG."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from matplotlib.axes import Axes

from bench.chart import FAINT, GOOD, INK, OTHER, drawing, png
from bench.hold.beside import (
    ALONE,
    FLOODED,
    INTERACTIVE,
    WITH_BATCH,
    WITHOUT_BATCH,
)
from bench.hold.beside import GOOD as TENANT
from bench.hold.loads import HOLDING, LOADS
from bench.hold.loads import OTHER as POLICY
from bench.hold.runs import Got, Result
from epp.replay.results.look import in_seconds
from epp.replay.results.measures import percentile

_HIGHEST = max(LOADS)
_POLICIES = ((POLICY, OTHER), (HOLDING, GOOD))
_BIN_SECONDS = 20.0
_BESIDE = (
    ("beside a flood", TENANT, ((ALONE, OTHER), (FLOODED, GOOD))),
    ("beside batches", INTERACTIVE, ((WITHOUT_BATCH, OTHER), (WITH_BATCH, GOOD))),
)


def draw(results: Mapping[str, Result]) -> bytes:
    """Draw the runs of one seed by their names."""
    with drawing(10.4, 3.3) as figure:
        shares, times, flood, batch = figure.subplots(1, 4)
        for policy, colour in _POLICIES:
            (got,) = results[f"{policy} {_HIGHEST}"].values()
            _shares(shares, got, colour, policy)
            _over_time(times, got, colour)
        shares.set(title=f"Requests at {_HIGHEST} % of capacity", ylabel="share of requests")
        shares.legend(loc="upper left", frameon=False, fontsize=8)
        times.set(title="Median by arrival", xlabel="minutes", yscale="log")
        in_seconds(times.yaxis)
        for axes, (title, client, pair) in zip((flood, batch), _BESIDE, strict=True):
            for name, colour in pair:
                _shares(axes, results[name][client], colour, name)
            axes.set(title=f"A client {title}")
            axes.legend(loc="upper left", frameon=False, fontsize=8)
        for axes in (shares, flood, batch):
            axes.set(xlabel="first token after")
        return png(figure)


def _shares(axes: Axes, got: Got, colour: str, label: str) -> None:
    waits = sorted(seconds for _, seconds in got.first_tokens)
    shares = [(rank + 1) / len(waits) for rank in range(len(waits))]
    axes.step(waits, shares, where="post", color=colour, lw=1.8, label=label)
    axes.axhline(0.95, color=FAINT, lw=0.8)
    axes.set(xscale="log", ylim=(0, 1.02))
    in_seconds(axes.xaxis)


def _over_time(axes: Axes, got: Got, colour: str) -> None:
    bins = groupby(sorted(got.first_tokens), lambda each: each[0] // _BIN_SECONDS)
    drawn: list[tuple[float, float]] = []
    for number, part in bins:
        values: Sequence[float] = [seconds for _, seconds in part]
        drawn.append(((number + 0.5) * _BIN_SECONDS / 60, percentile(values, 50)))
    axes.plot(*zip(*drawn, strict=True), color=colour, lw=1.8)
    axes.tick_params(colors=INK)
