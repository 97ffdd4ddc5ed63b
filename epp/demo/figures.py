"""Samples, one for each request, and the figures that summarize a run."""

import math
from collections.abc import Iterable, Sequence

import msgspec

from epp.replay.results.measures import percentile, ratio


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One request as its client measured it; times in seconds, `sent_at` since the run's start.

    `ttft` ends at the first byte of generated text. `server` is the target (`ip:port`) that the
    picker reported, empty if it reported none; `predicted_cached` is its estimate in tokens,
    None if it reported none. A failed request has an `error`, and its `ttft` does not count.
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
        """Predicted minus reported cached tokens; None without a prediction."""
        return None if self.predicted_cached is None else self.predicted_cached - self.cached_tokens


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run: times in seconds, ratios in 0..1.

    `imbalance` is the most prompt tokens computed on one server over the mean. Predictions are
    compared with the cached tokens that servers reported: `over` and `under` are the sums of
    errors of either sign as shares of all prompt tokens, `close` is the share of requests that
    were predicted within one block.
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


def cached_ratio(samples: Iterable[Sample]) -> float:
    """Return the share of prompt tokens that were cached."""
    pairs = [(sample.cached_tokens, sample.prompt_tokens) for sample in samples]
    return ratio(sum(cached for cached, _ in pairs), sum(prompt for _, prompt in pairs))


def computed_by_server(samples: Iterable[Sample], servers: Sequence[str]) -> list[int]:
    """Return the prompt tokens computed on each of `servers`."""
    computed = dict.fromkeys(servers, 0)
    for sample in samples:
        if sample.server in computed:
            computed[sample.server] += sample.computed_tokens
    return [computed[server] for server in servers]


def summarize(samples: Sequence[Sample], servers: Sequence[str], block_size: int) -> Figures:
    """Return the figures of a run; failed requests count in `failed` only."""
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


def gain_sentence(before: Figures, after: Figures) -> str:
    """Return a sentence that says what the second policy gained over the first."""
    factor = ratio(before.ttft_mean, after.ttft_mean)
    mean, median = (format_seconds(each) for each in (after.ttft_mean, after.ttft_p50))
    times = (
        f"{mean} on average instead of {format_seconds(before.ttft_mean)}, at the median "
        f"{median} instead of {format_seconds(before.ttft_p50)}"
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


def format_seconds(value: float) -> str:
    """Return a duration as text, in milliseconds below one second."""
    if math.isnan(value):
        return "none"
    return f"{value * 1000:.0f} ms" if value < 0.9995 else f"{value:.2f} s"
