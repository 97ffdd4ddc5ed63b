"""The verdict of a comparison, in sentences made from its figures, and all of it as JSON."""

import math
from collections.abc import Iterable

import msgspec

from epp.replay.results.comparison import LEADING, Cell, Comparison, Paired, PolicyResult, eligible
from epp.replay.results.digest import RANKS
from epp.replay.results.measures import format_figure, mean

VERSION = 1
"""The version of the JSON object's form; fields may be added without a new one."""
TELLING = 0.05
"""The least difference of mean TTFTs for which a reason is given."""


def headline(comparison: Comparison) -> str:
    """Return which policy is best, and by how much; `Perhaps` if several seeds leave it open."""
    best, baseline = comparison.best, comparison.baseline
    if not _got_first_token(comparison, best):
        came = any(each.requests for cell in comparison.cells for each in cell.standings.values())
        nothing_came = "no request came after the warm-up and within --duration"
        why = "no request got a first token" if came else nothing_came
        return f"No policy can be chosen: {why}."
    if len(comparison.policies) == 1:
        return f"{best}: the first token after {_range(comparison)}."
    if not _got_first_token(comparison, baseline):
        return f"Choose {best}: with {baseline} no request got a first token."
    found = comparison.overall[best][LEADING]
    if best == baseline or found.ratio == 1:
        return f"No policy is faster than {baseline} to the first token{_where(comparison)}."
    choose = "Choose" if found.sure or found.seeds == 1 else "Perhaps choose"
    if len(comparison.cells) == 1:
        (cell,) = comparison.cells
        times = (
            f"the first token comes after {_mean(cell, best)} on average instead of "
            f"{_mean(cell, baseline)} with {baseline}"
        )
        return f"{choose} {best}: {times}, {found.ratio:.2f} times as long."
    return (
        f"{choose} {best}: the first token takes {found.ratio:.2f} times as long as with {baseline}"
        f"{_where(comparison)}."
    )


def confidence(comparison: Comparison) -> str:
    """Return how sure that is, and which policies come close."""
    return " ".join((*_confidence(comparison), *_sent_alike(comparison)))


def _sent_alike(comparison: Comparison) -> Iterable[str]:
    """Yield a warning if all seeds were sent the same traffic."""
    alike, cells = sum(cell.one_traffic for cell in comparison.cells), len(comparison.cells)
    if alike:
        where = "" if alike == cells else f" in {alike} of {cells} cells"
        yield (
            f"All seeds were sent one and the same traffic{where}: they vary only the picker's own"
            " draws, and say nothing about other traffic (--rate draws other arrivals, --minutes"
            " takes another part)."
        )


def _confidence(comparison: Comparison) -> Iterable[str]:
    best, baseline = comparison.best, comparison.baseline
    if len(comparison.policies) == 1:
        seeds = len(comparison.seeds)
        yield "One seed: no spread." if seeds == 1 else f"{seeds} seeds."
        return
    if not _got_first_token(comparison, best):
        return
    if best != baseline:
        sent_alike = all(cell.one_traffic for cell in comparison.cells)
        found = comparison.overall[best][LEADING]
        yield certainty(found, f"{best} against {baseline}", one_traffic=sent_alike)
    refusing = _refusing(comparison)
    ranked = sorted(
        (each for each in comparison.rivals if each not in {*refusing, baseline}),
        key=lambda each: (math.isnan(comparison.rivals[each].ratio), comparison.rivals[each].ratio),
    )
    close = [each for each in ranked if not comparison.rivals[each].sure]
    if ranked and comparison.rivals[ranked[0]].seeds > 1:
        nearest = ranked[0]
        found = comparison.rivals[nearest]
        yield (
            f"Not told apart from {best}: {', '.join(close)}."
            if close
            else f"The next, {nearest}, takes {_interval(found)} times as long as {best}."
        )
    if refusing:
        yield (
            f"{', '.join(refusing)} left more requests without an answer and cannot be best: "
            "the latency of answered requests alone is flattering."
        )


def certainty(found: Paired, what: str, *, one_traffic: bool = False) -> str:
    """Return how sure a ratio is, in a sentence; `one_traffic`: it holds for that traffic only."""
    if math.isnan(found.ratio):
        return f"{what}: no seed has both."
    if found.seeds == 1:
        return f"{what}: one seed, so no spread; more seeds (--seeds 5) tell chance from gain."
    sides = f"less in {found.less} of {found.seeds} seeds, 95 % interval {_interval(found)}"
    if one_traffic:
        return f"{what}: {sides}."
    return f"{what}: {sides}: {'sure' if found.sure else 'not sure, as it includes 1'}."


def reason(comparison: Comparison) -> str:
    """Return why the best policy is faster than the baseline; empty if no figure shows it."""
    best, baseline = comparison.best, comparison.baseline
    pairs = [
        (cell.standings[baseline], cell.standings[best])
        for cell in comparison.cells
        if best != baseline and {best, baseline} <= cell.standings.keys()
    ]
    gain = _saved(pairs, LEADING)
    if not pairs or math.isnan(gain) or gain <= TELLING * mean(_of(pairs, 0, LEADING)):
        return ""
    causes = "; ".join(_causes(pairs))
    return f"Why: {causes}." if causes else ""


_Pairs = list[tuple[PolicyResult, PolicyResult]]


def _causes(pairs: _Pairs) -> Iterable[str]:
    """Yield the differences, those that save the most first."""
    gain = _saved(pairs, LEADING)
    causes = [
        (_saved(pairs, name), f"{verb} {_change(pairs, name)} {rest}")
        for name, verb, rest in (
            ("queue_mean", "requests wait", "for an engine"),
            ("prefill_mean", "prompts take", "to compute"),
        )
    ]
    known = sorted((each for each in causes if each[0] > TELLING * gain), reverse=True)
    yield from (text for _, text in known)
    more = -_saved(pairs, "cached_ratio")
    if abs(more) > TELLING * mean(_of(pairs, 0, "cached_ratio")):
        although = "although only " if more < 0 else ""
        change = _change(pairs, "cached_ratio")
        yield f"{although}{change} of prompt tokens were in the cache of the chosen pod"


def _change(pairs: _Pairs, name: str) -> str:
    was, became = (format_figure(name, mean(_of(pairs, place, name))) for place in (0, 1))
    return f"{became} instead of {was}"


def _of(pairs: _Pairs, place: int, name: str) -> list[float]:
    return [pair[place].figures[name].mean for pair in pairs]


def _saved(pairs: _Pairs, name: str) -> float:
    return mean(_of(pairs, 0, name)) - mean(_of(pairs, 1, name))


def _mean(cell: Cell, policy: str) -> str:
    return format_figure(LEADING, cell.standings[policy].figures[LEADING].mean)


def _range(comparison: Comparison) -> str:
    """Return the mean of the only policy: of the fastest cell and of the slowest."""
    (policy,) = comparison.policies
    known = [
        (value, number)
        for number, cell in enumerate(comparison.cells)
        if not math.isnan(value := cell.standings[policy].figures[LEADING].mean)
    ]
    least, most = (comparison.cells[pick(known)[1]] for pick in (min, max))
    if len(comparison.cells) == 1:
        return f"{_mean(least, policy)} on average"
    ends = (f"{_mean(cell, policy)} ({cell.name})" for cell in (least, most))
    return f"{' to '.join(ends)} on average"


def _got_first_token(comparison: Comparison, policy: str) -> bool:
    """Return whether any request got a first token, in any cell."""
    return any(
        not math.isnan(cell.standings[policy].figures[LEADING].mean)
        for cell in comparison.cells
        if policy in cell.standings
    )


def _where(comparison: Comparison) -> str:
    count = len(comparison.cells)
    if count == 1:
        return ""
    won = sum(cell.best == comparison.best for cell in comparison.cells)
    return f" (geometric mean of {count} cells; best in {won} of them)"


def _interval(found: Paired) -> str:
    return f"{found.ratio:.2f} ({found.low:.2f} to {found.high:.2f})"


def _refusing(comparison: Comparison) -> list[str]:
    """Return the policies that cannot be best, as they leave more requests unanswered."""
    unanswered = {
        policy: max(
            cell.standings[policy].unanswered
            for cell in comparison.cells
            if policy in cell.standings
        )
        for policy in comparison.policies
    }
    return [policy for policy in comparison.policies if not eligible(unanswered, policy)]


def as_json(comparison: Comparison, command: str = "") -> str:
    """Return the JSON object of docs/replay-results.md as one line; `command` repeats the runs.

    A missing value is null.
    """
    found = msgspec.to_builtins(comparison)
    curves = found.pop("curves")
    line = {
        "version": VERSION,
        "command": command,
        "headline": headline(comparison),
        "confidence": confidence(comparison),
        "reason": reason(comparison),
        **found,
        "ttft_ranks": RANKS,
        "ttft_quantiles": {
            cell: {
                policy: {str(seed): each["ttft"] for seed, each in by_seed.items()}
                for policy, by_seed in by_policy.items()
            }
            for cell, by_policy in curves.items()
        },
    }
    return msgspec.json.encode(line).decode()
