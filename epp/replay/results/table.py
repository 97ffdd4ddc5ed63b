"""A comparison as text for a terminal; a star marks the best value of a column."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain

import msgspec

from epp.replay.results.comparison import LEADING, Cell, Comparison, Paired, PolicyResult, winners
from epp.replay.results.digest import Slo
from epp.replay.results.measures import BY_NAME, MEASURES, format_figure
from epp.replay.results.verdict import confidence, headline, reason

NOT_SERVED = ("refused", "lost", "unfinished")
_LATENCIES = tuple(measure.name for measure in MEASURES if measure.latency)
_OTHERS = tuple(
    measure.name for measure in MEASURES if measure.name not in {*_LATENCIES, *NOT_SERVED}
)
MAX_TABLES = 4
"""Tables of single cells; of more there are ratios, and a row for each."""
_GAP = "  "
_BOLD, _PLAIN = "\x1b[1;32m", "\x1b[0m"


class Screen(msgspec.Struct, frozen=True):
    """The screen of a table: characters per line, and whether it shows colours."""

    width: int = 100
    colour: bool = False


class Column(msgspec.Struct, frozen=True):
    """A heading, and a text for each row; those of `best` are marked. `name` is its measure's."""

    heading: str
    cells: tuple[str, ...]
    best: frozenset[int] = frozenset()
    name: str = ""

    @property
    def width(self) -> int:
        """The characters it takes, with the gap before it and the place of a mark."""
        return max(map(len, (self.heading, *self.cells))) + len(_GAP) + 1


def show(comparison: Comparison, screen: Screen) -> str:
    """Return tables that fit the screen's width, with their verdict; ends with a newline."""
    parts: Iterable[Iterable[str]]
    if len(comparison.policies) == 1 and len(comparison.cells) > 1:
        parts = [_sweep(comparison, screen)]
    elif len(comparison.cells) <= MAX_TABLES:
        parts = (_cell(comparison, cell, screen) for cell in comparison.cells)
    else:
        parts = [_overview(comparison, screen)]
    said = [headline(comparison), confidence(comparison), reason(comparison)]
    lines = chain(chain.from_iterable(parts), _notes(comparison), ("",), filter(None, said))
    return "".join(f"{line.rstrip()}\n" for line in lines)


def columns(comparison: Comparison, cell: Cell) -> tuple[list[Column], list[Column], list[Column]]:
    """Return the columns of latencies, of the statuses, and all others."""
    first, *rest = (_column(cell, name) for name in _LATENCIES)
    against = tuple(_against(comparison, each) for each in cell.standings.values())
    ratios = Column(f"to {comparison.baseline}", against)
    statuses, found = ([_column(cell, name) for name in names] for names in (NOT_SERVED, _OTHERS))
    return [first, ratios, *rest], statuses, found


def _cell(comparison: Comparison, cell: Cell, screen: Screen) -> Iterator[str]:
    """Yield the figures of one cell: latencies with the statuses beside them, and the others."""
    requests = max(result.requests for result in cell.standings.values())
    yield f"{cell.name}: {requests:,.0f} requests, {format_fleet(cell)}, {cell.seconds:,.0f} s"
    yield ""
    names = tuple(cell.standings)
    latencies, statuses, others = columns(comparison, cell)
    yield from _blocks(names, latencies, statuses, screen)
    yield from _blocks(names, others, [], screen)


def _sweep(comparison: Comparison, screen: Screen) -> Iterator[str]:
    """Yield the figures of the only policy, a row for each cell."""
    (policy,) = comparison.policies
    cells = {cell.name: cell.standings[policy] for cell in comparison.cells}
    latencies, statuses, others = (
        [Column(BY_NAME[name].short, _texts(name, cells.values())) for name in names]
        for names in (_LATENCIES, NOT_SERVED, _OTHERS)
    )
    yield f"{policy}: {len(cells)} cells"
    yield ""
    yield from _blocks(tuple(cells), latencies, statuses, screen)
    yield from _blocks(tuple(cells), others, [], screen)


def _texts(name: str, results: Iterable[PolicyResult]) -> tuple[str, ...]:
    return tuple(format_figure(name, each.figures[name].mean) for each in results)


def _column(cell: Cell, name: str) -> Column:
    texts = _texts(name, cell.standings.values())
    found = winners(cell, name) if name not in NOT_SERVED and len(set(texts)) > 1 else ()
    best = {text for text, policy in zip(texts, cell.standings, strict=True) if policy in found}
    marked = frozenset(row for row, text in enumerate(texts) if text in best)
    return Column(BY_NAME[name].short, texts, marked, name)


def _against(comparison: Comparison, result: PolicyResult) -> str:
    return "" if result.policy == comparison.baseline else format_ratio(result.ratios[LEADING])


def format_ratio(found: Paired) -> str:
    """Return a ratio with its interval, if it has one; a dash for nan."""
    if math.isnan(found.ratio):
        return "-"
    if math.isnan(found.low):
        return f"{found.ratio:.2f}"
    return f"{found.ratio:.2f} ({found.low:.2f}-{found.high:.2f})"


def format_fleet(cell: Cell) -> str:
    """Return the number of pods, and the number of endpoints if it differs."""
    ranks = "" if cell.endpoints == cell.pods else f" with {cell.endpoints} ranks"
    return f"{cell.pods} pods{ranks}"


def format_slo(slo: Slo) -> str:
    """Return what users should get, as a part of a sentence. TPOT may have no bound."""
    others = "" if math.isinf(slo.tpot) else f" and the others {slo.tpot * 1000:g} ms apart"
    return f"the first token within {slo.ttft:g} s{others}"


def _overview(comparison: Comparison, screen: Screen) -> Iterator[str]:
    """Yield ratios to the baseline, over all cells and in each of them."""
    policies, cells = comparison.policies, comparison.cells
    yield f"{len(cells)} cells, ratios to {comparison.baseline}; geometric means"
    measured = [
        Column(
            BY_NAME[name].label,
            tuple(format_ratio(comparison.overall[policy][name]) for policy in policies),
        )
        for name in ("ttft_mean", "ttft_p50", "ttft_p99", "tpot_mean", "goodput_per_s")
    ]
    statuses = [
        Column(name, tuple(f"{_total(comparison, policy, name):,.0f}" for policy in policies))
        for name in NOT_SERVED
    ]
    yield from _blocks(policies, measured, statuses, screen)
    for name in (LEADING, "goodput_share"):
        yield f"{BY_NAME[name].label}, in each cell"
        by_policy = [
            Column(
                policy,
                tuple(_in_cell(cell, policy, name) for cell in cells),
                frozenset(row for row, cell in enumerate(cells) if policy in winners(cell, name)),
            )
            for policy in policies
        ]
        yield from _blocks([cell.name for cell in cells], by_policy, [], screen)


def _total(comparison: Comparison, policy: str, name: str) -> float:
    """Return how many requests of all cells ended in this way, on average over seeds."""
    return sum(
        cell.standings[policy].figures[name].mean
        for cell in comparison.cells
        if policy in cell.standings
    )


def _in_cell(cell: Cell, policy: str, name: str) -> str:
    return "".join(_texts(name, filter(None, [cell.standings.get(policy)]))) or "-"


def _blocks(
    names: Sequence[str], columns: Sequence[Column], always: Sequence[Column], screen: Screen
) -> Iterator[str]:
    """Yield tables of as many columns as fit, each ending with the columns of `always`."""
    label = max(map(len, names))
    room = screen.width - label - sum(column.width for column in always)
    left = list(columns)
    while left:
        fitting = max(1, sum(used <= room for used in accumulate(each.width for each in left)))
        shown = [*left[:fitting], *always]
        del left[:fitting]
        yield " " * label + "".join(_padded(each.heading, each, "") for each in shown)
        for row, name in enumerate(names):
            yield name.ljust(label) + "".join(_value(each, row, screen) for each in shown)
        yield ""


def _value(column: Column, row: int, screen: Screen) -> str:
    best = row in column.best
    text = _padded(column.cells[row], column, "*" if best else "")
    return f"{_BOLD}{text}{_PLAIN}" if best and screen.colour else text


def _padded(text: str, column: Column, mark: str) -> str:
    return text.rjust(column.width - 1) + (mark or " ")


def _notes(comparison: Comparison) -> Iterator[str]:
    seeds, slo = len(comparison.seeds), comparison.slo
    over = f"Means over {seeds} seeds" if seeds > 1 else "One seed"
    paired = ", ratios paired by seed with 95 % intervals" if seeds > 1 else ""
    yield f"{over}{paired}; * is best; a policy that answers fewer requests cannot be."
    yield (
        f"Latencies are those of answered requests. in SLO: of all requests, {format_slo(slo)}. "
        "of inf.: of what one infinite cache would have. "
        "All columns: docs/replay.md#what-the-figures-mean."
    )
