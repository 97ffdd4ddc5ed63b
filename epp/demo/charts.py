"""The plots of the report, as SVG text."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from epp.demo.comparison import RunResult
from epp.demo.figures import Sample, cached_ratio, computed_by_server
from epp.replay.results.style import ACCENT, EDGE, NEUTRAL, draw, in_seconds, legend_above

COLOURS = (NEUTRAL, ACCENT)
BIN_SECONDS = 2.0
WIDE = (8.6, 3.3)
HALF = (4.2, 3.3)

Pair = tuple[RunResult, RunResult]


def charts(before: RunResult, after: RunResult) -> dict[str, str]:
    """Return all plots as SVG, by name."""
    pair = (before, after)
    drawn = {
        "ttft": (_distribution, WIDE),
        "time": (_over_time, WIDE),
        "turns": (_over_turns, HALF),
        "servers": (_by_server, HALF),
        "predictions": (_predictions, HALF),
        "errors": (_errors, HALF),
    }

    def paint(chart: Callable[[Axes, Pair], None], figure: Figure) -> None:
        chart(figure.add_subplot(), pair)

    return {name: draw(size, partial(paint, chart)) for name, (chart, size) in drawn.items()}


def _good(result: RunResult) -> list[Sample]:
    return [sample for sample in result.samples if not sample.error]


def _distribution(axes: Axes, pair: Pair) -> None:
    for result, colour in zip(pair, COLOURS, strict=True):
        times = sorted(sample.ttft for sample in _good(result))
        shares = [(rank + 1) / len(times) for rank in range(len(times))]
        axes.step(times, shares, where="post", color=colour, lw=2, label=result.policy)
        axes.plot([result.figures.ttft_p50], [0.5], "o", color=colour, ms=6, mec="white", mew=1.2)
    axes.set_xscale("log")
    in_seconds(axes.xaxis)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set(xlabel="time to first token (logarithmic)", ylabel="of requests", ylim=(0, 1.02))
    axes.legend(loc="lower right")


def _over_time(axes: Axes, pair: Pair) -> None:
    for result, colour in zip(pair, COLOURS, strict=True):
        samples = _good(result)
        axes.plot(
            [sample.sent_at for sample in samples],
            [sample.ttft for sample in samples],
            *("o",),
            color=colour,
            ms=3.2,
            alpha=0.45,
            mew=0,
        )
        middles, medians = _binned(samples)
        axes.plot(middles, medians, color=colour, lw=2.2, label=f"{result.policy}, median")
    axes.set_yscale("log")
    in_seconds(axes.yaxis)
    axes.set(xlabel="seconds since the first conversation", ylabel="time to first token")
    legend_above(axes, 2)


def _binned(samples: Iterable[Sample]) -> tuple[list[float], list[float]]:
    bins = defaultdict(list)
    for sample in samples:
        bins[int(sample.sent_at / BIN_SECONDS)].append(sample.ttft)
    numbers = sorted(bins)
    middles = [(number + 0.5) * BIN_SECONDS for number in numbers]
    return middles, [statistics.median(bins[number]) for number in numbers]


def _over_turns(axes: Axes, pair: Pair) -> None:
    for result, colour in zip(pair, COLOURS, strict=True):
        turns = defaultdict(list)
        for sample in _good(result):
            turns[sample.turn + 1].append(sample)
        numbers = sorted(turns)
        ratios = [cached_ratio(turns[number]) for number in numbers]
        axes.plot(numbers, ratios, "o-", color=colour, lw=2, ms=5, label=result.policy)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set(xlabel="turn of the conversation", ylabel="prompt tokens cached", ylim=(0, 1.02))
    axes.legend(loc="lower right")


def _by_server(axes: Axes, pair: Pair) -> None:
    width = 0.38
    for shift, result, colour in zip((-width, 0.0), pair, COLOURS, strict=True):
        computed = computed_by_server(_good(result), result.servers)
        places = [number + 1 + shift + width / 2 for number in range(len(computed))]
        heights = [tokens / 1000 for tokens in computed]
        axes.bar(places, heights, width * 0.94, color=colour, label=result.policy)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=False, axis="x")
    axes.set(xlabel="model server", ylabel="prompt tokens computed, thousands")
    legend_above(axes, 2)


def _predictions(axes: Axes, pair: Pair) -> None:
    result = pair[1]
    predicted_requests = [
        (sample.cached_tokens, sample.miss) for sample in _good(result) if sample.miss is not None
    ]
    actual = [cached for cached, _ in predicted_requests]
    predicted = [cached + miss for cached, miss in predicted_requests]
    limit = max([*actual, *predicted, 1]) * 1.04
    axes.plot([0, limit], [0, limit], color=EDGE, lw=1)
    axes.plot(actual, predicted, "o", color=COLOURS[1], ms=3.6, alpha=0.45, mew=0)
    axes.set(xlim=(0, limit), ylim=(0, limit))
    axes.set(xlabel="cached tokens, reported by the server", ylabel="predicted by the picker")


def _errors(axes: Axes, pair: Pair) -> None:
    misses = [sample.miss for sample in _good(pair[1]) if sample.miss is not None]
    reach = max(map(abs, misses), default=1) or 1
    axes.hist(misses, bins=41, range=(-reach, reach), color=COLOURS[1], alpha=0.85)
    axes.grid(visible=False, axis="x")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="predicted minus reported, tokens", ylabel="requests")
