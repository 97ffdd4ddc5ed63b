"""A comparison as one self-contained HTML page: which policy is best, how sure that is, and why."""

import html
from collections.abc import Iterable, Sequence

from epp.replay.results.comparison import LEADING, Cell, Comparison, PolicyResult, Spread
from epp.replay.results.measures import BY_NAME, format_figure
from epp.replay.results.page import page, table, tile
from epp.replay.results.plots import cell_plots, ratio_plot
from epp.replay.results.sweep_plots import sweep_plot
from epp.replay.results.table import (
    NOT_SERVED,
    Column,
    columns,
    format_fleet,
    format_ratio,
    format_slo,
)
from epp.replay.results.verdict import confidence, headline, reason

MAX_CELLS = 6
"""Cells that are shown with all their plots: each takes about 300 kB."""
COLUMNS = 7
"""Columns of a table, beside the statuses: more do not fit the page."""
TILES = ("ttft_mean", "ttft_p99", "goodput_share", "cached_ratio")
PLOTS = {
    "ttft": (
        "How long users waited for the first token",
        (
            "Share of all requests answered within a time; a curve that ends below 100 % left "
            "requests without an answer. Further left is better. Dots: medians; bands: the seeds."
        ),
    ),
    "time": (
        "The same, as the run went on",
        "Medians of a sixtieth of the run. All caches are empty at the start.",
    ),
    "phases": (
        "Where the time goes",
        (
            "Means of served requests. Waiting is what routing can save by balance, computing "
            "what it can save by finding the prompt cached."
        ),
    ),
    "cache": (
        "What was cached, of what could have been",
        (
            "Prompt tokens found in the chosen pod's cache, before what one infinite cache of all "
            "pods would have had."
        ),
    ),
    "load": (
        "Load of the pods",
        (
            "Requests waiting and running at each pod, with the first seed. Even colour across "
            "pods is balance."
        ),
    ),
    "errors": (
        "Did the picker know?",
        (
            "The decision's own prediction of the time to first token, against what came; in the "
            "middle it was right. All seeds."
        ),
    ),
}


def report(comparison: Comparison, command: str = "") -> str:
    """Return the page; the same comparison gives the same bytes. `command` repeats it."""
    several = len(comparison.cells) > 1
    return page(
        "replay",
        ", ".join(comparison.policies),
        "epp.replay.results",
        headline=html.escape(headline(comparison)),
        confidence=html.escape(confidence(comparison)),
        reason=html.escape(reason(comparison)),
        tiles="" if several else "".join(_tiles(comparison)),
        overall="".join(_overall(comparison)),
        cells="".join(_cells(comparison)),
        facts="".join(f"<li>{fact}</li>" for fact in _facts(comparison, command)),
    )


def _tiles(comparison: Comparison) -> Iterable[str]:
    """Yield the figures of the best policy and of the baseline."""
    (cell,) = comparison.cells
    best, baseline = (cell.standings[each] for each in (comparison.best, comparison.baseline))
    yield '<div class="tiles">'
    for name in TILES:
        label, value = BY_NAME[name].label, format_figure(name, best.figures[name].mean)
        was = f"{baseline.policy}: {format_figure(name, baseline.figures[name].mean)}"
        yield tile(f"{label}, {best.policy}", value, was)
    yield "</div>"


def _overall(comparison: Comparison) -> Iterable[str]:
    if len(comparison.policies) > 1:
        count = len(comparison.cells)
        over = f"geometric means over {count} cells" if count > 1 else "one workload"
        lines = (
            "lines: 95 % confidence, paired by seed" if len(comparison.seeds) > 1 else "one seed"
        )
        yield _section("Against the baseline", f"Dots: {over}; {lines}.")
        yield f"<figure>{ratio_plot(comparison)}</figure>"
    if len(comparison.cells) > 1:
        swept = sweep_plot(comparison)
        if swept:
            yield _section("How it goes with the load", "Mean time to first token, logarithmic.")
            yield f"<figure>{swept}</figure>"
        ratio = "" if len(comparison.policies) == 1 else f", and its ratio to {comparison.baseline}"
        yield _section("Every cell", f"TTFT mean{ratio}.")
        yield _matrix(comparison)


def _matrix(comparison: Comparison) -> str:
    rows = []
    for cell in comparison.cells:
        values = []
        for policy in comparison.policies:
            result = cell.standings.get(policy)
            text = _leading(result, comparison) if result else "-"
            share = result.unanswered if result else 0.0
            lost = f"<small>{share:.1%} unanswered</small>" if share else ""
            values.append(f"<td{_class(best=cell.best == policy, bad=share > 0)}>{text}{lost}</td>")
        rows.append(f"<tr><th>{html.escape(cell.name)}</th>{''.join(values)}</tr>")
    return table(comparison.policies, rows)


def _leading(result: PolicyResult, comparison: Comparison) -> str:
    text = format_figure(LEADING, result.figures[LEADING].mean)
    if len(comparison.policies) == 1:
        return text
    return f"{text}<small>{format_ratio(result.ratios[LEADING])}</small>"


def _cells(comparison: Comparison) -> Iterable[str]:
    shown = comparison.cells[:MAX_CELLS]
    for cell in shown:
        parts = "".join(_cell(comparison, cell))
        title = f"{html.escape(cell.name)}: {format_fleet(cell)}, {cell.seconds:,.0f} s"
        many = len(comparison.cells) > 1
        yield f"<details><summary>{title}</summary>{parts}</details>" if many else parts
    if len(comparison.cells) > len(shown):
        yield _section(
            "", f"Plots of the first {len(shown)} cells are here; --json has all figures."
        )


def _cell(comparison: Comparison, cell: Cell) -> Iterable[str]:
    requests = max(result.requests for result in cell.standings.values())
    yield _section(
        "The figures",
        f"{cell.name}: {requests:,.0f} requests to {format_fleet(cell)} in {cell.seconds:,.0f} s. "
        "Green is best. Small: least to most of the seeds, below a ratio its 95 % interval.",
    )
    for group in _abreast(comparison, cell):
        rows = [
            f"<tr{_class(best=policy == cell.best, bad=False)}><th>{html.escape(policy)}</th>"
            f"{''.join(_datum(cell, policy, row, column) for column in group)}</tr>"
            for row, policy in enumerate(cell.standings)
        ]
        yield table([column.heading for column in group], rows)
    for name, plot in cell_plots(comparison, cell).items():
        yield _section(*PLOTS[name])
        yield f"<figure>{plot}</figure>"


def _abreast(comparison: Comparison, cell: Cell) -> Iterable[Sequence[Column]]:
    """Yield the columns of each table, with the statuses beside all latencies."""
    latencies, statuses, others = columns(comparison, cell)
    for group, beside in ((latencies, statuses), (others, [])):
        for start in range(0, len(group), COLUMNS):
            yield [*group[start : start + COLUMNS], *beside]


def _datum(cell: Cell, policy: str, row: int, column: Column) -> str:
    spread = cell.standings[policy].figures.get(column.name)
    text = column.cells[row]
    text = html.escape(text) if column.name else _interval_below(text)
    bad = column.name in NOT_SERVED and spread is not None and spread.mean > 0
    small = "" if spread is None else _small(column.name, spread)
    return f"<td{_class(best=row in column.best, bad=bad)}>{text}{small}</td>"


def _interval_below(ratio: str) -> str:
    """Return a ratio with its interval in small print."""
    middle, _, interval = ratio.partition(" ")
    return f"{middle}<small>{interval.strip('()')}</small>" if interval else middle


def _small(name: str, spread: Spread) -> str:
    least, most = format_figure(name, spread.least), format_figure(name, spread.most)
    unit = most.partition(" ")[2]
    return f"<small>{least.removesuffix(f' {unit}')} to {most}</small>" if least != most else ""


def _class(*, best: bool, bad: bool) -> str:
    if not best and not bad:
        return ""
    return ' class="bad"' if bad else ' class="best"'


def _section(title: str, caption: str) -> str:
    head = f"<h2>{html.escape(title)}</h2>" if title else ""
    return f'{head}<p class="caption">{html.escape(caption)}</p>'


def _facts(comparison: Comparison, command: str) -> Iterable[str]:
    seeds, slo = comparison.seeds, comparison.slo
    yield (
        "Engines are simulated, policies are not: the picker is the product's own code. Ratios "
        "between policies are worth more than the seconds."
    )
    yield f"Seeds: {', '.join(map(str, seeds))}. Ratios are of runs with the same seed."
    if len(seeds) > 1:
        yield (
            "95 % intervals: Student's t of the ratios' logarithms. They hold for these workloads "
            "with other random choices, not for other workloads."
        )
    if any(cell.one_traffic for cell in comparison.cells):
        yield (
            "If all seeds were sent the same traffic, such as an unchanged file, intervals cover"
            " only the picker's own draws."
        )
    yield (
        "TTFT is that of requests that got a first token. A policy that serves 1 % fewer of its "
        "requests than another cannot be best: refusing is the cheapest way to be quick."
    )
    yield (
        f"Goodput counts what was served with {format_slo(slo)}; refused, lost and unfinished "
        "requests count against it."
    )
    yield f"Load: {', '.join(f'{load:g}' for load in sorted({c.load for c in comparison.cells}))}."
    if command:
        yield f"Repeat with <code>{html.escape(command)}</code>."
