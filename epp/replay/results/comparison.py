"""Policies compared: means and spreads over seeds, and ratios to a baseline paired by seed."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import stdev

import msgspec

from epp.replay.results.digest import Curves, Digest, Slo
from epp.replay.results.measures import BY_NAME, MEASURES, Better, mean

LEADING = "ttft_mean"
"""The measure by which policies are ranked."""
TOLERATED = 0.01
"""The best policy may leave at most this share of requests more unanswered than another."""
_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t for 95 %, two-sided, by degrees of freedom from 1; from 31 on 2.04 is close."""


class Spread(msgspec.Struct, frozen=True):
    """A figure over seeds: its mean, least and most, and that of each. NaN if no run has it."""

    mean: float
    least: float
    most: float
    values: tuple[float, ...]


class Paired(msgspec.Struct, frozen=True):
    """A figure's ratio to that of another policy with the same seeds.

    `ratio` is the geometric mean over `seeds`; `low` and `high` bound it with 95 % confidence
    (Student's t of the ratios' logarithms), NaN with fewer than two seeds, or a ratio of 0 or
    infinity. In `less` seeds it is under 1.
    """

    ratio: float
    low: float
    high: float
    seeds: int
    less: int

    @property
    def sure(self) -> bool:
        """Whether the interval leaves out 1."""
        return self.high < 1 or self.low > 1


class PolicyResult(msgspec.Struct, frozen=True, kw_only=True):
    """One policy in one cell; `figures` and `ratios` (to the baseline) are by measure.

    `unanswered` is the share of requests that were not served.
    """

    policy: str
    seeds: tuple[int, ...]
    requests: float
    unanswered: float
    figures: Mapping[str, Spread]
    ratios: Mapping[str, Paired]


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """The policies in one cell."""

    name: str
    """The cell's label."""
    workload: str
    """The name of the traffic."""
    pods: int
    """How many pods there were."""
    endpoints: int
    """How many endpoints: each rank of a pod is one."""
    load: float
    """Copies of the traffic; in the study, a share of what the fleet can serve."""
    seconds: float
    """Virtual time after the warm-up, on average."""
    standings: Mapping[str, PolicyResult]
    """What each policy did."""
    best: str
    """The best by `LEADING`, of those that answer as much as others."""
    one_traffic: bool = False
    """Whether there are several seeds, with all of which the very same was sent."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All policies in all cells."""

    baseline: str
    """The label of the policy that the others are compared with."""
    slo: Slo
    """What goodput requires."""
    policies: tuple[str, ...]
    """The policies' labels."""
    seeds: tuple[int, ...]
    """The seeds that each policy ran with."""
    cells: tuple[Cell, ...]
    """What each policy did in each cell."""
    overall: Mapping[str, Mapping[str, Paired]]
    """Ratios to the baseline by policy and measure: geometric means, paired by seed."""
    best: str
    """The policy that is best overall."""
    rivals: Mapping[str, Paired]
    """Ratios of `LEADING`, overall, to the best policy."""
    curves: Mapping[str, Mapping[str, Mapping[int, Curves]]]
    """By cell, policy and seed."""


_Runs = Mapping[str, Mapping[str, Mapping[int, Digest]]]
"""By cell, policy and seed."""


def compare(runs: Iterable[Digest], baseline: str | None = None) -> Comparison:
    """Compare runs, each there once; ratios are to `baseline` (default: the first run's policy)."""
    listed = list(runs)
    policies = tuple(dict.fromkeys(run.policy for run in listed))
    baseline = baseline or policies[0]
    by_cell: dict[str, dict[str, dict[int, Digest]]] = {}
    for run in listed:
        by_cell.setdefault(run.cell, {}).setdefault(run.policy, {})[run.seed] = run
    cells = tuple(_cell(name, by_policy, baseline) for name, by_policy in by_cell.items())
    overall = {policy: _ratios(by_cell, policy, baseline) for policy in policies}
    best = _best(
        {policy: _unanswered(by_cell, policy) for policy in policies},
        {policy: found[LEADING].ratio for policy, found in overall.items()},
    )
    return Comparison(
        baseline=baseline,
        slo=listed[0].slo,
        policies=policies,
        seeds=tuple(sorted({run.seed for run in listed})),
        cells=cells,
        overall=overall,
        best=best,
        rivals={
            policy: _overall(by_cell, policy, best, LEADING)
            for policy in policies
            if policy != best
        },
        curves={
            cell: {
                policy: {seed: run.curves for seed, run in by_seed.items()}
                for policy, by_seed in by_policy.items()
            }
            for cell, by_policy in by_cell.items()
        },
    )


def _cell(name: str, by_policy: Mapping[str, Mapping[int, Digest]], baseline: str) -> Cell:
    alone = {name: by_policy}
    standings = {
        policy: PolicyResult(
            policy=policy,
            seeds=tuple(sorted(by_seed)),
            requests=mean(run.figures["requests"] for run in by_seed.values()),
            unanswered=_unanswered(alone, policy),
            figures={each.name: _spread(by_seed, each.name) for each in MEASURES},
            ratios=_ratios(alone, policy, baseline),
        )
        for policy, by_seed in by_policy.items()
    }
    first = next(run for by_seed in by_policy.values() for run in by_seed.values())
    return Cell(
        name=name,
        workload=first.workload or name,
        pods=first.pods,
        endpoints=first.endpoints,
        load=first.load,
        seconds=mean(run.seconds for by_seed in by_policy.values() for run in by_seed.values()),
        standings=standings,
        best=_best(
            {policy: result.unanswered for policy, result in standings.items()},
            {policy: result.figures[LEADING].mean for policy, result in standings.items()},
        ),
        one_traffic=_is_one_traffic(run for runs in by_policy.values() for run in runs.values()),
    )


def _is_one_traffic(runs: Iterable[Digest]) -> bool:
    seeds, traffic = zip(*((run.seed, run.traffic) for run in runs), strict=True)
    return len(set(seeds)) > 1 and len(set(traffic)) == 1 and bool(traffic[0])


def _spread(by_seed: Mapping[int, Digest], name: str) -> Spread:
    values = tuple(by_seed[seed].figures[name] for seed in sorted(by_seed))
    known = [value for value in values if not math.isnan(value)]
    nothing = math.nan
    return Spread(mean(known), min(known, default=nothing), max(known, default=nothing), values)


def _ratios(by_cell: _Runs, policy: str, baseline: str) -> dict[str, Paired]:
    return {each.name: _overall(by_cell, policy, baseline, each.name) for each in MEASURES}


def _overall(by_cell: _Runs, policy: str, other: str, name: str) -> Paired:
    """Return a ratio over all cells: for each seed, the mean over those where both have a value."""
    logs = defaultdict[int, list[float]](list)
    for by_policy in by_cell.values():
        mine, theirs = by_policy.get(policy, {}), by_policy.get(other, {})
        for seed in sorted(mine.keys() & theirs.keys()):
            one, two = (by_seed[seed].figures[name] for by_seed in (mine, theirs))
            log = _log_ratio(one, two, BY_NAME[name].better)
            if not math.isnan(log):
                logs[seed].append(log)
    return paired([_mean_log(each) for each in logs.values()])


def _log_ratio(mine: float, theirs: float, better: Better) -> float:
    """Return the logarithm of a ratio; NaN if there is none.

    If more is better, a figure of 0 is 0 times the baseline's.
    """
    if 0 < mine < math.inf and 0 < theirs < math.inf:
        return math.log(mine) - math.log(theirs)
    if better is Better.MORE and 0 in {mine, theirs} and 0 < mine + theirs < math.inf:
        return math.inf if mine else -math.inf
    return math.nan


def _mean_log(logs: Sequence[float]) -> float:
    """Return the mean; NaN if some ratios are 0 and others infinite."""
    return math.nan if {-math.inf, math.inf} <= {*logs} else mean(logs)


def paired(logs: Sequence[float]) -> Paired:
    """Return the ratio, given its logarithm for each seed."""
    count, middle = len(logs), _mean_log(logs)
    reach = math.nan
    if count > 1 and math.isfinite(middle):
        reach = _T95[min(count - 1, len(_T95)) - 1] * stdev(logs) / math.sqrt(count)
    low, ratio, high = (_exp(each) for each in (middle - reach, middle, middle + reach))
    return Paired(ratio, low, high, count, sum(each < 0 for each in logs))


def _exp(power: float) -> float:
    """Return e to a power; infinite if that is too large for a float."""
    return math.inf if power > 700 else math.exp(power)  # noqa: PLR2004 (a float's most: 709)


def _unanswered(by_cell: _Runs, policy: str) -> float:
    """Return the largest share of requests, over all cells, that a policy did not serve."""
    return max(
        (
            mean(_missed(run.figures) for run in by_policy[policy].values())
            for by_policy in by_cell.values()
            if policy in by_policy
        ),
        default=0.0,
    )


def _missed(figures: Mapping[str, float]) -> float:
    requests = figures["requests"]
    return 1 - figures["served"] / requests if requests else 0.0


def _best(unanswered: Mapping[str, float], values: Mapping[str, float]) -> str:
    """Return the policy with the lowest value among those that answer about as much as any."""
    return min(
        values,
        key=lambda policy: (
            not eligible(unanswered, policy),
            math.isnan(values[policy]),
            values[policy],
        ),
    )


def eligible(unanswered: Mapping[str, float], policy: str) -> bool:
    """Whether a policy's latency may be compared with others' that answer more requests."""
    return unanswered[policy] <= min(unanswered.values()) + TOLERATED


def winners(cell: Cell, name: str) -> frozenset[str]:
    """Return the policies with the best mean of a measure; empty if none is better."""
    measure, standings = BY_NAME[name], cell.standings
    if measure.better is Better.NEITHER:
        return frozenset()
    unanswered = {policy: result.unanswered for policy, result in standings.items()}
    values = {
        policy: result.figures[name].mean
        for policy, result in standings.items()
        if not math.isnan(result.figures[name].mean)
        and (not measure.latency or eligible(unanswered, policy))
    }
    pick = min if measure.better is Better.LESS else max
    winning = pick(values.values(), default=math.nan)
    best = frozenset(policy for policy, value in values.items() if value == winning)
    return best if len(best) < len(standings) else frozenset()
