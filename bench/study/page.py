"""The page of the study: one table over everything, tables by what was varied, and plots."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import isnan
from pathlib import Path

from bench.machine import describe
from bench.study.grid import BASELINE
from epp.replay.results.comparison import (
    LEADING,
    Cell,
    Comparison,
    Paired,
    compare,
    eligible,
)
from epp.replay.results.digest import Digest
from epp.replay.results.plots import ratio_plot
from epp.replay.results.sweep_plots import sweep_plot
from epp.replay.results.verdict import confidence, headline

_MEASURES = {
    LEADING: "TTFT mean",
    "ttft_p99": "TTFT p99",
    "tpot_mean": "TPOT mean",
    "end_to_end_mean": "end to end",
}
_INTRODUCTION = """\
# Routing study

This page compares policies in front of simulated engines that follow vLLM's rules, in virtual time
([replay.md](replay.md) explains how). `make study` writes it; no figure here is typed by hand.

Each figure is a ratio to the default of llm-d-router's chart (`llm-d-router`); below 1 is faster. A
ratio is the geometric mean over cases, paired by seed. Brackets are 95 % intervals over seeds.
"""
_METHOD = """\
## How it was played

A case is a workload, a number of pods, a fleet and a load. The pods of a fleet are equal, or every
second one is 2.5 times slower and no policy is told. The load is a share of what the fleet could
compute if one cache held everything.

Responses are observed as `epp serve` does by default (`--observe-responses=auto`). Requests wait in
the picker only with `least-ttft`; with the other policies each is sent as soon as it arrives.

If larger fleets were played at one load only, the columns of a table are of different cases. The
weights of `least-ttft` were chosen on the cases with four pods.

A star marks a policy that left over 1 % more of its requests unanswered at the end of the run than
another, so its times do not compare.
"""
_By = Callable[[Digest], str]
_VARIED: dict[str, _By] = {
    "workload": lambda each: each.workload.partition(",")[0],
    "pods": lambda each: f"{each.pods} pods",
    "load": lambda each: f"load {each.load:g}",
    "fleet": lambda each: each.workload.partition(", ")[2],
}


def write(digests: Sequence[Digest], page: Path, whole: int) -> None:
    """Write the page, and its plots beside it; `whole` is the number of runs of the study."""
    everything = compare(digests, BASELINE)
    plots = {"ratios": ratio_plot(everything), "loads": sweep_plot(everything)}
    for name, svg in plots.items():
        if svg:
            page.with_name(f"routing-study-{name}.svg").write_text(svg, encoding="utf-8")
    page.write_text("\n".join(_lines(digests, everything, whole)), encoding="utf-8")


def _lines(digests: Sequence[Digest], everything: Comparison, whole: int) -> Iterable[str]:
    yield _INTRODUCTION
    yield f"**{headline(everything)}** {confidence(everything)}\n"
    runs = f"{len(digests):,} of the study's {whole:,} runs"
    yield f"{len(everything.cells)} cases, {len(everything.seeds)} seeds: {runs}. {describe()}.\n"
    yield _METHOD
    yield "## Everything\n"
    yield "![Ratios of TTFT to llm-d-router's default](routing-study-ratios.svg)\n"
    yield from _table(
        "policy",
        {
            policy: [everything.overall[policy].get(name) for name in _MEASURES]
            for policy in everything.policies
        },
        list(_MEASURES.values()),
    )
    for measure, name in ((LEADING, "Mean TTFT"), ("end_to_end_mean", "Mean end to end")):
        for title, key in _VARIED.items():
            yield f"## {name} by {title}\n"
            yield from _by(digests, everything.policies, key, measure)
    yield "## Every case\n"
    yield "![Mean TTFT of every case](routing-study-loads.svg)\n"
    yield from _cases(everything)


def _by(
    digests: Sequence[Digest], policies: Sequence[str], key: _By, measure: str
) -> Iterable[str]:
    parts = defaultdict(list)
    for each in digests:
        parts[key(each)].append(each)
    found = {name: compare(part, BASELINE).overall for name, part in parts.items()}
    rows = {
        policy: [overall[policy].get(measure) for overall in found.values()] for policy in policies
    }
    yield from _table("policy", rows, list(found))


def _cases(everything: Comparison) -> Iterable[str]:
    """Yield the seconds of every case, the best in bold, with a star what does not compare."""
    policies = everything.policies
    yield f"| mean TTFT, s | {' | '.join(policies)} |"
    yield f"|---|{'--:|' * len(policies)}"
    for cell in everything.cells:
        yield f"| {cell.name} | {' | '.join(_seconds(cell, each) for each in policies)} |"
    yield ""


def _seconds(cell: Cell, policy: str) -> str:
    seconds = f"{cell.standings[policy].figures[LEADING].mean:.3f}"
    if not eligible({name: each.unanswered for name, each in cell.standings.items()}, policy):
        return f"{seconds}*"
    return f"**{seconds}**" if policy == cell.best else seconds


def _table(
    corner: str, rows: dict[str, list[Paired | None]], columns: Sequence[str]
) -> Iterable[str]:
    yield f"| {corner} | {' | '.join(columns)} |"
    yield f"|---|{'--:|' * len(columns)}"
    for name, cells in rows.items():
        yield f"| {name} | {' | '.join(map(_ratio, cells))} |"
    yield ""


def _ratio(found: Paired | None) -> str:
    if found is None or isnan(found.ratio):
        return "-"
    if isnan(found.low) or found.low == found.high:
        return f"{found.ratio:.2f}"
    return f"{found.ratio:.2f} ({found.low:.2f}-{found.high:.2f})"
