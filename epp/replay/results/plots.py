"""The plots of one cell, as SVG text: how long users waited, where the time went, and why."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median

import msgspec
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    MaxNLocator,
    NullLocator,
    PercentFormatter,
)

from epp.replay.results.comparison import Cell, Comparison, Paired, PolicyResult
from epp.replay.results.digest import BINS, ERROR_BINS, ERROR_REACH, RANKS, Curves
from epp.replay.results.measures import BY_NAME, Unit, format_value, mean
from epp.replay.results.style import (
    ACCENT,
    CARD,
    EDGE,
    HEAT,
    draw,
    in_seconds,
    legend_above,
    palette,
)

WIDTH = 9.2
ROW = 0.34
"""The inches of a policy's row."""
MAX_STEPS = 4
"""Labels of an axis of ratios."""
MARGIN = 0.05
"""The margin at either end of an axis of ratios, whose labels would reach into the next plot."""
_RATIOS = ("ttft_mean", "ttft_p99", "end_to_end_mean")
_PHASES = (
    ("queue_mean", "waiting for an engine", "#e8590c"),
    ("prefill_mean", "computing the prompt", "#f2b35e"),
    ("decode_mean", "generating", "#9db4c8"),
)


class View(msgspec.Struct, frozen=True):
    """A cell with a colour for each policy."""

    cell: Cell
    curves: Mapping[str, Mapping[int, Curves]]
    colours: Mapping[str, str]

    def ranked(self) -> list[PolicyResult]:
        """The policies, the best mean TTFT last, which plots show at the top."""
        return sorted(
            self.cell.standings.values(),
            key=lambda each: -_known(each.figures["ttft_mean"].mean, math.inf),
        )


def cell_plots(comparison: Comparison, cell: Cell) -> dict[str, str]:
    """Return the plots of a cell, by name; those without data are left out."""
    colours = palette(comparison.policies, comparison.best, comparison.baseline)
    seen = View(cell, comparison.curves[cell.name], colours)
    count = len(cell.standings)
    has_ttft, has_phases = (_measured(seen, name) for name in ("ttft_mean", "queue_mean"))
    runs = [run for by_seed in seen.curves.values() for run in by_seed.values()]
    plots: dict[str, tuple[float, Callable[[View, Figure], None], bool]] = {
        "ttft": (3.6, _distribution, has_ttft),
        "time": (3.4, _over_time, has_ttft),
        "phases": (1.3 + ROW * count, _phases, has_phases),
        "cache": (1.2 + ROW * count, _cache, True),
        "load": (0.8 + 0.9 * math.ceil(count / 2), _load, True),
        "errors": (3.2, _errors, any(sum(run.ttft_errors) for run in runs)),
    }
    return {
        name: draw((WIDTH, high), partial(paint, seen))
        for name, (high, paint, has) in plots.items()
        if has
    }


def ratio_plot(comparison: Comparison) -> str:
    """Return the ratios to the baseline over all cells, as dots with intervals."""
    colours = palette(comparison.policies, comparison.best, comparison.baseline)
    ratios = comparison.overall
    ranked = sorted(
        (policy for policy in ratios if policy != comparison.baseline),
        key=lambda policy: -_known(ratios[policy]["ttft_mean"].ratio, math.inf),
    )

    def paint(figure: Figure) -> None:
        axes = figure.subplots(1, len(_RATIOS), sharey=True)
        for each, name in zip(axes, _RATIOS, strict=True):
            found = [ratios[policy][name] for policy in ranked]
            _dots(each, found, [colours[policy] for policy in ranked])
            each.set_title(BY_NAME[name].label, loc="left")
        axes[0].set_yticks(range(len(ranked)), ranked)
        figure.supxlabel(f"ratio to {comparison.baseline} (logarithmic); left is better", size=10)

    return draw((WIDTH, 1.25 + ROW * len(ranked)), paint)


def _dots(axes: Axes, ratios: Sequence[Paired], colours: Sequence[str]) -> None:
    axes.axvline(1, color=EDGE, lw=1.2, ls=(0, (4, 3)))
    for place, (found, colour) in enumerate(zip(ratios, colours, strict=True)):
        if math.isnan(found.ratio):
            continue
        if not math.isnan(found.low):
            axes.plot([found.low, found.high], [place, place], color=colour, lw=2.6, alpha=0.55)
        axes.plot([found.ratio], [place], "o", color=colour, ms=7, mec=CARD, mew=1)
        axes.annotate(
            f"{found.ratio:.2f}",
            (found.ratio, place),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            size=8.5,
        )
    values = [found.ratio for found in ratios if not math.isnan(found.ratio)]
    values += [each for found in ratios for each in (found.low, found.high) if 0.05 < each < 20]  # noqa: PLR2004 (others leave the plot)
    low, high = min([*values, 1]), max([*values, 1])
    room = (high / low) ** 0.12 * 1.06
    axes.set(xscale="log", xlim=(low / room, high * room), ylim=(-0.6, len(ratios) - 0.25))
    axes.xaxis.set_major_locator(FixedLocator(_steps(low / room, high * room)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(visible=False, axis="y")


def _steps(low: float, high: float) -> list[float]:
    """Return a few round numbers between two, not too close to either."""
    room = (high / low) ** MARGIN
    low, high = low * room, high / room
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    grids = [
        [
            step * 10.0**decade
            for decade in decades
            for step in leading
            if low <= step * 10.0**decade <= high
        ]
        for leading in ((1, 1.2, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 5), (1, 3), (1,))
    ]
    return next((grid for grid in grids if len(grid) <= MAX_STEPS), grids[-1])


def _distribution(seen: View, figure: Figure) -> None:
    """Draw the share of all requests answered within a time; a curve may end below 1."""
    axes = figure.add_subplot()
    low, high = math.inf, 0.0
    for policy, result in seen.cell.standings.items():
        runs = [each.ttft for each in seen.curves[policy].values() if not math.isnan(each.ttft[0])]
        if not runs:
            continue
        answered = 1 - result.unanswered
        shares = [rank / 100 * answered for rank in RANKS]
        colour = seen.colours[policy]
        middle = [mean(each) for each in zip(*runs, strict=True)]
        least, most = ([pick(each) for each in zip(*runs, strict=True)] for pick in (min, max))
        axes.fill_betweenx(shares, least, most, color=colour, alpha=0.16, lw=0)
        front = 3 if colour == ACCENT else 2
        axes.plot(middle, shares, color=colour, lw=2.1, label=policy, zorder=front)
        axes.plot([middle[50]], [0.5 * answered], "o", color=colour, ms=6, mec=CARD, zorder=4)
        low, high = min(low, middle[1]), max(high, middle[-2])
    axes.set_xscale("log")
    if high > 0:
        axes.set_xlim(max(low, high / 1e4) * 0.9, high * 1.1)
    in_seconds(axes.xaxis)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set(xlabel="time to first token (logarithmic)", ylabel="of all requests", ylim=(0, 1.02))
    axes.legend(loc="upper left", fontsize=9)


def _over_time(seen: View, figure: Figure) -> None:
    axes = figure.add_subplot()
    for policy, by_seed in seen.curves.items():
        colour = seen.colours[policy]
        width = max(run.seconds for run in by_seed.values()) / BINS
        middles = [(number + 0.5) * width for number in range(BINS)]
        found = [[run.ttft_at(at) for run in by_seed.values()] for at in middles]
        values = [[value for value in each if not math.isnan(value)] for each in found]
        medians = [median(each) if each else math.nan for each in values]
        front = 3 if colour == ACCENT else 2
        axes.plot(middles, medians, color=colour, lw=1.8, label=policy, zorder=front)
    axes.set_yscale("log")
    in_seconds(axes.yaxis)
    axes.set(xlabel="seconds of the run", ylabel="time to first token, median")
    axes.set_xlim(0, _longest(seen))
    legend_above(axes, min(len(seen.curves), 5))


def _phases(seen: View, figure: Figure) -> None:
    first, whole = figure.subplots(1, 2, sharey=True)
    ranked = seen.ranked()
    for axes, phases in ((first, _PHASES[:2]), (whole, _PHASES)):
        left = [0.0] * len(ranked)
        for name, label, colour in phases:
            long = [_known(each.figures[name].mean, 0.0) for each in ranked]
            axes.barh(range(len(ranked)), long, 0.62, left=left, color=colour, label=label)
            left = [sum(pair) for pair in zip(left, long, strict=True)]
        for place, end in enumerate(left):
            text = format_value(end, Unit.SECONDS)
            axes.annotate(
                text, (end, place), (4, 0), textcoords="offset points", va="center", size=9
            )
        axes.set_xlim(0, max(*left, 1e-3) * 1.2)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.grid(visible=False, axis="y")
    first.set_yticks(range(len(ranked)), [each.policy for each in ranked])
    first.set_title("until the first token, mean seconds", loc="left")
    whole.set_title("until the last token, mean seconds", loc="left")
    handles, labels = whole.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)


def _cache(seen: View, figure: Figure) -> None:
    axes = figure.add_subplot()
    ranked = seen.ranked()
    places = range(len(ranked))
    reusable = [_known(each.figures["reusable_ratio"].mean, 0.0) for each in ranked]
    cached = [_known(each.figures["cached_ratio"].mean, 0.0) for each in ranked]
    axes.barh(places, reusable, 0.62, color=EDGE, alpha=0.3, label="in one infinite cache")
    axes.barh(
        places,
        cached,
        0.62,
        color=[seen.colours[each.policy] for each in ranked],
        label="in the chosen pod's cache",
    )
    for place, result in enumerate(ranked):
        share = format_value(result.figures["cached_of_reusable"].mean, Unit.SHARE)
        axes.annotate(
            f"{share} of it",
            (reusable[place], place),
            (5, 0),
            textcoords="offset points",
            va="center",
            size=9,
        )
    axes.set_yticks(places, [each.policy for each in ranked])
    axes.set_xlim(0, max(*reusable, *cached, 0.01) * 1.16)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.grid(visible=False, axis="y")
    axes.set(xlabel="of prompt tokens; grey: in one infinite cache that all share")


def _load(seen: View, figure: Figure) -> None:
    drawn = {policy: runs[min(runs)] for policy, runs in seen.curves.items()}  # the first seed's
    values = sorted(value for run in drawn.values() for row in run.load for value in row)
    most = max(1, values[int(0.99 * (len(values) - 1))])
    grid = figure.subplots(math.ceil(len(drawn) / 2), 2, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for axes, (policy, run) in zip(panels, drawn.items(), strict=False):
        axes.imshow(
            run.load,
            aspect="auto",
            cmap=HEAT,
            vmin=0,
            vmax=most,
            extent=(0, run.seconds or 1.0, len(run.load) - 0.5, -0.5),
            interpolation="none",
        )
        axes.set_xlim(0, _longest(seen))
        axes.set_title(policy, loc="left", color=seen.colours[policy], weight="bold")
        axes.grid(visible=False)
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.xaxis.set_major_locator(MaxNLocator(6, prune="upper"))
    for axes in panels[len(drawn) :]:
        axes.set_axis_off()
    figure.supxlabel("seconds of the run", size=10)
    figure.supylabel("pod", size=10)
    image = ScalarMappable(Normalize(0, most), HEAT)
    figure.colorbar(image, ax=panels, label="requests", aspect=30, pad=0.01)


def _errors(seen: View, figure: Figure) -> None:
    axes = figure.add_subplot()
    step = 2 * ERROR_REACH / ERROR_BINS
    middles = [-ERROR_REACH + (number + 0.5) * step for number in range(ERROR_BINS)]
    axes.axvline(0, color=EDGE, lw=1.2, ls=(0, (4, 3)))
    for policy, by_seed in seen.curves.items():
        counts = [
            sum(each) for each in zip(*(run.ttft_errors for run in by_seed.values()), strict=True)
        ]
        if not sum(counts):
            continue
        shares = [count / sum(counts) for count in counts]
        error = format_value(seen.cell.standings[policy].figures["ttft_error"].mean, Unit.SHARE)
        colour = seen.colours[policy]
        axes.step(
            middles, shares, where="mid", color=colour, lw=1.8, label=f"{policy}, off by {error}"
        )
    axes.xaxis.set_major_locator(FixedLocator([-4, -3, -2, -1, 0, 1, 2, 3, 4]))
    axes.xaxis.set_major_formatter(FuncFormatter(_times))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set(xlabel="predicted over real time to first token", ylabel="of requests", ylim=(0, None))
    axes.legend(loc="upper left", fontsize=9)


def _times(power: float, _: int) -> str:
    return f"{2**power:g}x" if power >= 0 else f"1/{2**-power:g}"


def _measured(seen: View, name: str) -> bool:
    standings = seen.cell.standings.values()
    return any(not math.isnan(each.figures[name].mean) for each in standings)


def _longest(seen: View) -> float:
    """Return how long the longest run took, at which all time axes end."""
    return max(run.seconds for runs in seen.curves.values() for run in runs.values()) or 1.0


def _known(value: float, otherwise: float) -> float:
    return otherwise if math.isnan(value) else value
