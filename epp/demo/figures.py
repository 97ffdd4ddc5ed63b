"""What was measured about each request, and the figures that sum it up. Pure."""

import math
from collections.abc import Iterable, Sequence

import msgspec


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One request as its client saw it; times in seconds, `sent_at` after the run's start.

    `ttft` ends at the first byte of generated text. `server` is the target that the picker named,
    empty where it said nothing; `predicted_cached` is its estimate, None likewise. A request that
    failed has an `error` and no `ttft` that counts.
    """

    conversation: int
    turn: int
    sent_at: float
    ttft: float = math.nan
    seconds: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    server: str = ""
    predicted_cached: int | None = None
    error: str = ""

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that the server had to compute."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def miss(self) -> int | None:
        """Predicted minus reported cached tokens, None without a prediction."""
        return None if self.predicted_cached is None else self.predicted_cached - self.cached_tokens


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """A run in numbers: times in seconds, ratios in 0..1.

    `imbalance` is the largest server's share of computed prompt tokens over the mean. Predictions
    are judged against what the servers reported: `over` and `under` are the summed errors of
    either sign as shares of all prompt tokens, `close` the share of requests that were predicted
    within one block.
    """

    requests: int
    failed: int
    ttft_mean: float
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    cached_ratio: float
    requests_per_s: float
    imbalance: float
    over: float
    under: float
    close: float


def percentile(values: Iterable[float], percent: float) -> float:
    """Interpolate linearly between the closest ranks; nan of nothing."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = math.ceil(position)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def ratio(part: float, whole: float) -> float:
    """Divide; nan where there is nothing to divide by."""
    return part / whole if whole else math.nan


def cached_ratio(samples: Iterable[Sample]) -> float:
    """Share of prompt tokens that were found in a cache."""
    pairs = [(sample.cached_tokens, sample.prompt_tokens) for sample in samples]
    return ratio(sum(cached for cached, _ in pairs), sum(prompt for _, prompt in pairs))


def computed_by_server(samples: Iterable[Sample], servers: Sequence[str]) -> list[int]:
    """Prompt tokens computed on each of `servers`."""
    computed = dict.fromkeys(servers, 0)
    for sample in samples:
        if sample.server in computed:
            computed[sample.server] += sample.computed_tokens
    return [computed[server] for server in servers]


def summed_up(samples: Sequence[Sample], servers: Sequence[str], block_size: int) -> Figures:
    """Sum a run up; failed requests count as such and in nothing else."""
    good = [sample for sample in samples if not sample.error]
    times = [sample.ttft for sample in good]
    computed = computed_by_server(good, servers)
    prompt = sum(sample.prompt_tokens for sample in good)
    missed = [sample.miss for sample in good if sample.miss is not None]
    return Figures(
        requests=len(good),
        failed=len(samples) - len(good),
        ttft_mean=ratio(sum(times), len(times)),
        ttft_p50=percentile(times, 50),
        ttft_p90=percentile(times, 90),
        ttft_p99=percentile(times, 99),
        cached_ratio=cached_ratio(good),
        requests_per_s=ratio(len(good), _span(good)),
        imbalance=ratio(max(computed, default=0) * len(computed), sum(computed)),
        over=ratio(sum(miss for miss in missed if miss > 0), prompt if missed else 0),
        under=ratio(-sum(miss for miss in missed if miss < 0), prompt if missed else 0),
        close=ratio(sum(abs(miss) <= block_size for miss in missed), len(missed)),
    )


def _span(samples: Sequence[Sample]) -> float:
    starts = [sample.sent_at for sample in samples]
    ends = [sample.sent_at + sample.seconds for sample in samples]
    return max(ends, default=0.0) - min(starts, default=0.0)


def gained(before: Figures, after: Figures) -> str:
    """Say in one sentence what the second policy gained over the first."""
    factor = ratio(before.ttft_mean, after.ttft_mean)
    times = (
        f"{seconds(after.ttft_mean)} on average instead of {seconds(before.ttft_mean)}, at the "
        f"median {seconds(after.ttft_p50)} instead of {seconds(before.ttft_p50)}"
    )
    cached = f"{after.cached_ratio:.0%} instead of {before.cached_ratio:.0%} of the prompt tokens"
    if factor >= 1.05:
        return (
            f"With least-ttft people waited {factor:.1f} times less for the first token than with "
            f"round robin ({times}), because {cached} were already in the chosen server's cache."
        )
    return (
        f"This load gained nothing from least-ttft: people waited for the first token {times}; "
        f"{cached} were already in the chosen server's cache."
    )


def seconds(value: float) -> str:
    """Write a duration the way people read it."""
    if math.isnan(value):
        return "none"
    return f"{value * 1000:.0f} ms" if value < 0.9995 else f"{value:.2f} s"
