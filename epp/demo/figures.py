"""Samples, one for each request, and the figures that summarize a run."""

import math
from collections.abc import Iterable, Sequence

import msgspec

from epp.replay.results.measures import Unit, format_value, percentile, ratio


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One request as its client measured it. Times are in seconds."""

    conversation: int
    """The number of its conversation."""
    turn: int
    """The number of its turn in it."""
    sent_at: float
    """When it was sent, since the run's start."""
    ttft: float = math.nan
    """From then to the first byte of generated text; NaN if it failed."""
    seconds: float = 0.0
    """From then to the end of the response."""
    prompt_tokens: int = 0
    """The prompt's length, as the server reported it."""
    cached_tokens: int = 0
    """The part of it that the server had cached."""
    completion_tokens: int = 0
    """Generated tokens."""
    server: str = ""
    """The target (`ip:port`) that the picker reported; empty if it reported none."""
    predicted_cached: int | None = None
    """The cached tokens that the picker predicted; None if it reported none."""
    error: str = ""
    """Why it failed; empty if it did not."""

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that the server had to compute."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def miss(self) -> int | None:
        """Predicted minus reported cached tokens; None without a prediction."""
        return None if self.predicted_cached is None else self.predicted_cached - self.cached_tokens


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run. Times are in seconds, ratios in 0..1."""

    requests: int
    """Requests that were served."""
    failed: int
    """Requests that were not."""
    ttft_mean: float
    """The mean time to the first token."""
    ttft_p50: float
    """Its median."""
    ttft_p90: float
    """Its 90th percentile."""
    ttft_p99: float
    """Its 99th percentile."""
    cached_ratio: float
    """The cached share of all prompt tokens."""
    requests_per_s: float
    """Served requests per second."""
    imbalance: float
    """The most prompt tokens computed on one server over the mean."""
    over: float
    """The sum of too high predictions of cached tokens, as a share of all prompt tokens."""
    under: float
    """The sum of too low ones."""
    close: float
    """The share of requests that were predicted within one block."""


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
    if not (before.requests and after.requests):
        return "Nothing can be compared: with one of the policies no request was served."
    factor = ratio(before.ttft_mean, after.ttft_mean)
    mean, was_mean, median, was_median = (
        format_value(each, Unit.SECONDS)
        for each in (after.ttft_mean, before.ttft_mean, after.ttft_p50, before.ttft_p50)
    )
    times = (
        f"{mean} on average instead of {was_mean}, at the median {median} instead of {was_median}"
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
