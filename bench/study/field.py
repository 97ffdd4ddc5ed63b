"""The page of all policies over all workloads: tables, heat maps, and where `least-ttft` is behind.

Another policy counts as ahead if `least-ttft` takes more than 3 % longer.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from msgspec.structs import replace

from bench.machine import describe
from bench.study.grid import BASELINE, Grid, shared_prefixes, subjects, tasks
from epp.replay.policies import NAMED
from epp.replay.results.comparison import LEADING, Cell, Comparison, compare, eligible
from epp.replay.results.digest import Digest
from epp.replay.results.style import draw
from epp.replay.sweep import Task

OURS, ORACLE = "least-ttft", "oracle"
AHEAD = 1.03
_EVERYBODY = Grid(pods=(4,), loads=(0.5,), seeds=(0, 1), policies=tuple(NAMED))
_DIVERGING = LinearSegmentedColormap.from_list(
    "better", ("#2b8a3e", "#b2dfb9", "#f4f1ec", "#f5b08a")
)
_MEASURES = {LEADING: "Mean TTFT", "end_to_end_mean": "Mean end to end"}
_FLEETS = {"equal": "equal pods", "unequal": "every second pod 2.5 times slower, unlabelled"}
_SLOWEST = 1.7
_FASTEST = _SLOWEST**-2
"""Where the colours of a heat map end: the baseline is at two thirds of them, which is neutral."""
_INTRODUCTION = """\
# All policies, all workloads

This page compares every policy of [policies.md](policies.md) with its published defaults, in front
of simulated engines that follow vLLM's rules, in virtual time ([replay.md](replay.md) explains
how). `make study-policies` writes it; no figure here is typed by hand.

Each figure is a ratio to the default of llm-d-router's chart (`llm-d-router`), paired by seed;
below 1 is faster. The best of a column is bold.
"""
_METHOD = """\
## How it was played

Responses are observed as `epp serve` does by default (`--observe-responses=auto`). Requests wait in
the picker only with `least-ttft`; with the other policies each is sent as soon as it arrives.

The workloads are:

- those of the [routing study](routing-study.md) on 4 pods, at half of what the fleet could compute
  if one cache held everything (`conversation` also at 0.7);
- inference-perf's shared prefixes on 8 pods: A with answers of 100 tokens, B with answers of 500
  and small caches. Cold is the first time of each prompt, at 20 (A) and 12 (B) requests per second.
  Warm are its repetitions, at 40 and 20. If every second pod is slow, the rates are 0.7 of these.

`oracle` is `least-ttft` with the truth in place of predictions. No real policy can do that, so it
is never bold. A star marks a policy that left over 1 % more of its requests unanswered at the end
of the run than another, so its times do not compare. Requests have no fairness ids:
`aibrix-vtc-basic` then picks as `random` does, and `d2lpm` knows one client.

If one or two seeds were played, a difference below about 5 % may turn with the next seed. In
`code`, whose runs are few and very long prompts, that is a difference below about 20 %.
"""


def everybody(traces: Path) -> Iterator[Task]:
    """Yield every run of the page, those of one traffic one after another."""
    all_of_them = subjects(traces)
    yield from tasks(all_of_them, _EVERYBODY)
    yield from tasks(all_of_them[:1], replace(_EVERYBODY, loads=(0.7,)))
    yield from tasks(shared_prefixes(), replace(_EVERYBODY, pods=(8,)))


def write(digests: Sequence[Digest], page: Path, whole: int) -> None:
    """Write the page, and a heat map for each measure beside it; `whole` runs are wanted."""
    found, to_ours = compare(digests, BASELINE), compare(digests, OURS)
    ranked = _ranked(found)
    for measure, title in _MEASURES.items():
        place = page.with_name(f"{page.stem}-{_slug(title)}.svg")
        place.write_text(_heat_map(found, ranked, measure), encoding="utf-8")
    runs = f"{len(digests):,} of {whole:,} runs"
    lines = [*_introduction(found, ranked, runs), *_beside_ours(to_ours)]
    lines += _tables(found, ranked, page.stem)
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _introduction(found: Comparison, ranked: Sequence[str], runs: str) -> Iterable[str]:
    yield _INTRODUCTION
    seeds = ", ".join(map(str, found.seeds))
    extent = f"{len(ranked)} policies, {len(found.cells)} cases, seeds {seeds}"
    yield f"{extent}: {runs}. {describe()}.\n"
    yield _METHOD


def _tables(found: Comparison, ranked: Sequence[str], stem: str) -> Iterable[str]:
    for measure, title in _MEASURES.items():
        yield f"## {title}\n"
        yield f"![{title} of every policy, as a ratio to {BASELINE}]({stem}-{_slug(title)}.svg)\n"
        for fleet, described in _FLEETS.items():
            yield f"### {title}, {described}\n"
            yield from _table(_of(found, fleet), ranked, measure)


def _beside_ours(to_ours: Comparison) -> Iterable[str]:
    yield f"## Where another policy is ahead of `{OURS}`\n"
    yield from _behind(to_ours)
    yield f"## `{OURS}` and the oracle\n"
    yield from _against_oracle(to_ours)


def _of(found: Comparison, fleet: str) -> list[Cell]:
    return [cell for cell in found.cells if cell.workload.partition(", ")[2] == fleet]


def _ranked(found: Comparison) -> list[str]:
    """Return the policies, the least TTFT over all cases first; those without any last."""
    ratios = {policy: found.overall[policy][LEADING].ratio for policy in found.policies}
    return sorted(ratios, key=lambda policy: (math.isnan(ratios[policy]), ratios[policy]))


def _title(cell: Cell) -> str:
    """Return a case's name as a column's: its load where it is not the first of the grid."""
    name = cell.workload.partition(",")[0]
    usual = cell.load == _EVERYBODY.loads[0]
    return name if usual else f"{name} {cell.load:g}"


def _table(cells: Sequence[Cell], ranked: Sequence[str], measure: str) -> Iterable[str]:
    yield f"| policy | {' | '.join(map(_title, cells))} | all |"
    yield f"|---|{'--:|' * (len(cells) + 1)}"
    best = [_best(cell, measure) for cell in cells]
    means = {
        policy: geometric_mean(_ratio(cell, policy, measure) for cell in cells) for policy in ranked
    }
    compared = {
        policy: mean
        for policy, mean in means.items()
        if policy != ORACLE and not any(_starred(cell, policy) for cell in cells)
    }
    first = min((mean for mean in compared.values() if not math.isnan(mean)), default=math.nan)
    for policy, mean in means.items():
        shown = [_shown(cell, policy, measure, top) for cell, top in zip(cells, best, strict=True)]
        bold = compared.get(policy) == first
        shown.append(f"**{_number(mean)}**" if bold else _number(mean))
        yield f"| `{policy}` | {' | '.join(shown)} |"
    yield ""


def geometric_mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean; NaN where a ratio is not known."""
    logs = [math.log(each) for each in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def _ratio(cell: Cell, policy: str, measure: str) -> float:
    """Return the ratio to the policy that was compared with; NaN where that is not known."""
    result = cell.standings.get(policy)
    return math.nan if result is None else result.ratios[measure].ratio


def _unanswered(cell: Cell) -> dict[str, float]:
    return {policy: result.unanswered for policy, result in cell.standings.items()}


def _starred(cell: Cell, policy: str) -> bool:
    """Whether a policy leaves so much unanswered there that its times do not compare."""
    return policy in cell.standings and not eligible(_unanswered(cell), policy)


def _best(cell: Cell, measure: str) -> float:
    """Return the least ratio, of the policies that could be had and that answer."""
    unanswered = _unanswered(cell)
    ratios = [
        _ratio(cell, policy, measure)
        for policy in cell.standings
        if policy != ORACLE and eligible(unanswered, policy)
    ]
    return min((each for each in ratios if not math.isnan(each)), default=math.nan)


def _shown(cell: Cell, policy: str, measure: str, best: float) -> str:
    ratio = _ratio(cell, policy, measure)
    if math.isnan(ratio):
        return "-"
    if _starred(cell, policy):
        return f"{_number(ratio)}*"
    return f"**{_number(ratio)}**" if policy != ORACLE and ratio == best else _number(ratio)


def _number(ratio: float) -> str:
    if math.isnan(ratio):
        return "-"
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def _behind(to_ours: Comparison) -> Iterable[str]:
    """Yield a row for each case and policy that takes 3 % less of a measure than ours."""
    rows = []
    for cell in to_ours.cells:
        unanswered = _unanswered(cell)
        for policy, result in cell.standings.items():
            lost = [1 / _ratio(cell, policy, each) for each in _MEASURES]
            ahead = any(each > AHEAD for each in lost) and policy not in {OURS, ORACLE}
            if ahead and eligible(unanswered, policy):
                shown = [f"**{each:.2f}**" if each > AHEAD else _number(each) for each in lost]
                seeds = result.ratios[LEADING].seeds
                rows.append(f"| {cell.name} | `{policy}` | {' | '.join(shown)} | {seeds} |")
    if not rows:
        yield "Nowhere by more than 3 %, in neither measure.\n"
        return
    yield f"The ratio of `{OURS}` to the other policy; bold if it is more than 1.03.\n"
    yield "| case | policy | mean TTFT | mean end to end | seeds |\n|---|---|--:|--:|--:|"
    yield from rows
    yield ""


def _against_oracle(to_ours: Comparison) -> Iterable[str]:
    gain = "what better predictions would gain with the same cost function"
    yield f"The ratio of `{OURS}` to `{ORACLE}`: {gain}.\n"
    yield "| case | mean TTFT | mean end to end |\n|---|--:|--:|"
    for cell in to_ours.cells:
        ratios = [1 / _ratio(cell, ORACLE, each) for each in _MEASURES]
        yield f"| {cell.name} | {' | '.join(map(_number, ratios))} |"
    overall = to_ours.overall.get(ORACLE, {})
    ratios = [1 / overall[each].ratio for each in _MEASURES if each in overall]
    yield f"| all | {' | '.join(map(_number, ratios))} |"


def _heat_map(found: Comparison, ranked: Sequence[str], measure: str) -> str:
    sides = {fleet: _of(found, fleet) for fleet in _FLEETS}

    def paint(figure: Figure) -> None:
        panels = figure.subplots(1, len(sides), sharey=True)
        for axes, (fleet, cells) in zip(panels, sides.items(), strict=True):
            _panel(axes, cells, ranked, measure)
            axes.set_title(f"{fleet} pods", loc="left")
        panels[0].set_yticks(range(len(ranked)), ranked, size=9)
        figure.supxlabel(f"{_MEASURES[measure]} over {BASELINE}'s; green is faster", size=10)

    return draw((13.0, 2.0 + 0.27 * len(ranked)), paint)


def _panel(axes: Axes, cells: Sequence[Cell], ranked: Sequence[str], measure: str) -> None:
    ratios = [[_ratio(cell, policy, measure) for cell in cells] for policy in ranked]
    axes.imshow(ratios, aspect="auto", cmap=_DIVERGING, norm=LogNorm(_FASTEST, _SLOWEST))
    best = [_best(cell, measure) for cell in cells]
    for row, values in enumerate(ratios):
        for column, ratio in enumerate(values):
            first = ratio == best[column] and ranked[row] != ORACLE
            weight = "bold" if first else "normal"
            place = (column, row)
            axes.annotate(_number(ratio), place, ha="center", va="center", size=7.5, weight=weight)
    axes.set_xticks(range(len(cells)), list(map(_title, cells)), rotation=40, ha="right", size=9)
    axes.grid(visible=False)


def _slug(title: str) -> str:
    return title.lower().replace(" ", "-")
