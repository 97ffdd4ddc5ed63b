"""A run reduced to figures and curves, small enough to keep thousands of them."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from epp.replay.results.measures import mean, percentile, percentiles, ratio
from epp.replay.results.played import Played, RunFacts
from epp.replay.simulation.outcome import CallOutcome, CallStatus

RANKS: tuple[float, ...] = (*range(100), 99.5, 99.9, 100)
"""The percents of the TTFT's quantiles."""
BINS = 60
"""Equal parts of a run's time."""
ERROR_BINS = 33
ERROR_REACH = 4.0
"""Errors of predicted TTFT are binned from 1/16 to 16 times; this is the power of two."""
WINDOW_SECONDS = 60.0
"""The window of `imbalance_windows`."""


class Slo(msgspec.Struct, frozen=True):
    """What users should get, in seconds: the first token, and the mean time of each further one."""

    ttft: float = 2.0
    tpot: float = 0.05

    def met(self, outcome: CallOutcome) -> bool:
        """Whether a request was served within these; a response of one token has no TPOT."""
        return (
            outcome.status is CallStatus.SERVED
            and outcome.ttft <= self.ttft
            and not outcome.tpot > self.tpot
        )


class Curves(msgspec.Struct, frozen=True, kw_only=True):
    """What the plots of a run need in addition to its figures.

    `ttft` are quantiles at `RANKS`. The others have `BINS` parts of the run, which took `seconds`:
    the median TTFT of the requests sent then, and for each pod the mean of its waiting and running
    requests, rounded. `ttft_errors` counts log2(predicted / real TTFT) in `ERROR_BINS` bins; values
    beyond `ERROR_REACH` are in the outermost ones.
    """

    ttft: tuple[float, ...]
    ttft_over_time: tuple[float, ...]
    load: tuple[tuple[int, ...], ...]
    ttft_errors: tuple[int, ...]
    seconds: float = 0.0

    def ttft_at(self, at: float) -> float:
        """Return the median TTFT at a time after the warm-up; NaN if it is not known."""
        return self.ttft_over_time[int(at / self.seconds * BINS)] if at < self.seconds else math.nan


class Digest(RunFacts, frozen=True, kw_only=True):
    """A `Played` run, with figures and curves in place of its requests."""

    slo: Slo
    """What goodput requires."""
    figures: Mapping[str, float]
    """By the names of `MEASURES`; `requests` were sent after the warm-up, `served` were answered.

    Times are in seconds, shares 0..1; NaN if there is nothing to measure. TTFT is that of all
    requests that got a first token; what follows it, and its parts, of those that were served.
    """
    curves: Curves
    """The distributions of its times."""
    unserved: Mapping[str, int] = {}
    """How many requests were refused or lost, by the reason."""


def digest(played: Played, slo: Slo | None = None) -> Digest:
    """Reduce a run; goodput is measured by `slo` (default: `Slo()`)."""
    slo = slo or Slo()
    outcomes = [outcome for outcome in played.outcomes if outcome.at >= played.began]
    return Digest(
        **{name: getattr(played, name) for name in RunFacts.__struct_fields__},
        slo=slo,
        figures=_figures(outcomes, played, slo),
        curves=_curves(outcomes, played),
        unserved=Counter(outcome.reason for outcome in outcomes if outcome.reason),
    )


def _figures(outcomes: Sequence[CallOutcome], played: Played, slo: Slo) -> dict[str, float]:
    answered = _answered(outcomes)
    served = [outcome for outcome in outcomes if outcome.status is CallStatus.SERVED]
    ttft = [outcome.ttft for outcome in answered]
    tpot = [outcome.tpot for outcome in served if not math.isnan(outcome.tpot)]
    whole = [outcome.end_to_end for outcome in served]
    prompt = sum(outcome.prompt for outcome in answered)
    cached = sum(outcome.cached for outcome in answered)
    reusable = sum(outcome.reusable for outcome in answered)
    missed = [outcome.predicted_cached - outcome.cached for outcome in answered]
    foreseen = _foreseen(answered)
    good = sum(slo.met(outcome) for outcome in outcomes)
    statuses = Counter(outcome.status for outcome in outcomes)
    p50, p90, p99 = percentiles(ttft, (50, 90, 99))
    return {
        "requests": len(outcomes),
        "served": len(served),
        "refused": statuses[CallStatus.REFUSED],
        "lost": statuses[CallStatus.LOST],
        "unfinished": statuses[CallStatus.UNFINISHED],
        "preemptions": sum(outcome.preempted for outcome in outcomes),
        "ttft_mean": mean(ttft),
        "ttft_p50": p50,
        "ttft_p90": p90,
        "ttft_p99": p99,
        "tpot_mean": mean(tpot),
        "tpot_p99": percentile(tpot, 99),
        "end_to_end_mean": mean(whole),
        "end_to_end_p99": percentile(whole, 99),
        "queue_mean": mean(outcome.queued for outcome in served),
        "prefill_mean": mean(outcome.ttft - outcome.queued for outcome in served),
        "decode_mean": mean(outcome.end_to_end - outcome.ttft for outcome in served),
        "requests_per_s": ratio(len(served), played.seconds),
        "output_per_s": ratio(sum(outcome.generated for outcome in outcomes), played.seconds),
        "goodput_share": ratio(good, len(outcomes)),
        "goodput_per_s": ratio(good, played.seconds),
        "cached_ratio": ratio(cached, prompt),
        "reusable_ratio": ratio(reusable, prompt),
        "cached_of_reusable": ratio(cached, reusable),
        "imbalance": _imbalance(answered, played.endpoints, lambda _: 0),
        "imbalance_windows": _imbalance(answered, played.endpoints, _window),
        "cached_over": ratio(sum(miss for miss in missed if miss > 0), prompt),
        "cached_under": ratio(-sum(miss for miss in missed if miss < 0), prompt),
        "ttft_error": percentile((abs(said / real - 1) for said, real in foreseen), 50),
        "ttft_bias": ratio(
            math.fsum(said for said, _ in foreseen) - math.fsum(real for _, real in foreseen),
            math.fsum(real for _, real in foreseen),
        ),
    }


def _answered(outcomes: Iterable[CallOutcome]) -> list[CallOutcome]:
    """Return the requests that got a first token."""
    return [outcome for outcome in outcomes if not math.isnan(outcome.ttft)]


def _foreseen(answered: Iterable[CallOutcome]) -> list[tuple[float, float]]:
    """Return the predicted and the real TTFT of requests that have both."""
    return [
        (outcome.predicted_ttft, outcome.ttft)
        for outcome in answered
        if not math.isnan(outcome.predicted_ttft) and outcome.ttft > 0
    ]


def _window(outcome: CallOutcome) -> int:
    """Return the number of the window in which a request's prompt was begun."""
    waited = 0.0 if math.isnan(outcome.queued) else outcome.queued
    return int((outcome.at + waited) // WINDOW_SECONDS)


def _imbalance(
    answered: Iterable[CallOutcome], endpoints: int, window: Callable[[CallOutcome], int]
) -> float:
    """Return the computed prompt tokens of each window's busiest pod over those of the mean pod."""
    windows = defaultdict[int, Counter[int]](Counter)
    for outcome in answered:
        pod = outcome.endpoint if outcome.prefill is None else outcome.prefill
        windows[window(outcome)][pod] += outcome.prompt - outcome.cached
    most = sum(max(computed.values()) for computed in windows.values())
    return ratio(most * endpoints, sum(computed.total() for computed in windows.values()))


def _curves(outcomes: Sequence[CallOutcome], played: Played) -> Curves:
    answered = _answered(outcomes)
    bins: list[list[float]] = [[] for _ in range(BINS)]
    for outcome in answered:
        bins[_bin(outcome.at, played)].append(outcome.ttft)
    return Curves(
        ttft=tuple(percentiles((outcome.ttft for outcome in answered), RANKS)),
        ttft_over_time=tuple(percentile(each, 50) for each in bins),
        load=_load(played),
        ttft_errors=_ttft_errors(_foreseen(answered)),
        seconds=played.seconds,
    )


def _bin(at: float, played: Played) -> int:
    share = (at - played.began) / played.seconds if played.seconds > 0 else 0.0
    return min(max(int(share * BINS), 0), BINS - 1)


def _load(played: Played) -> tuple[tuple[int, ...], ...]:
    """Return the mean load of each pod by part; one without samples repeats the part before it."""
    seen: list[list[list[int]]] = [[[] for _ in range(BINS)] for _ in range(played.endpoints)]
    for sample in played.samples:
        if sample.at >= played.began:
            seen[sample.pod][_bin(sample.at, played)].append(sample.waiting + sample.running)
    return tuple(tuple(_filled(parts)) for parts in seen)


def _filled(parts: Iterable[Sequence[int]]) -> Iterable[int]:
    last = 0
    for part in parts:
        last = round(sum(part) / len(part)) if part else last
        yield last


def _ttft_errors(foreseen: Iterable[tuple[float, float]]) -> tuple[int, ...]:
    counts = [0] * ERROR_BINS
    for said, real in foreseen:
        error = math.log2(said / real) if said > 0 else -ERROR_REACH
        place = (error + ERROR_REACH) / (2 * ERROR_REACH) * ERROR_BINS
        counts[min(max(int(place), 0), ERROR_BINS - 1)] += 1
    return tuple(counts)
