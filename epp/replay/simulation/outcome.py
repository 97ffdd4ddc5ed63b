"""The outcome of one request of a run."""

from enum import Enum
from math import nan

import msgspec


class CallStatus(Enum):
    """How a request ended."""

    SERVED = "served"
    REFUSED = "refused"
    """The picker sent it nowhere: no endpoint, overload, or longer than any engine takes."""
    LOST = "lost"
    """The engine died with it, or answered with an error."""
    UNFINISHED = "unfinished"
    """The run ended before it did."""


class CallOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One request; times are in seconds, counts in tokens."""

    call: int
    """The number of the call."""
    at: float
    """When the client sent it, in the run's time."""
    status: CallStatus
    """How it ended."""
    endpoint: int
    """The number of the endpoint that it was sent to; -1 for none."""
    prompt: int
    """The length of its prompt."""
    generated: int
    """Tokens that were generated."""
    ttft: float
    """From `at` to the first token; NaN if there was none."""
    tpot: float
    """The mean time of each token after the first; NaN if there were none."""
    end_to_end: float
    """From `at` to the last token; NaN if it was not served."""
    cached: int
    """What the engine that computed the prompt had cached."""
    reusable: int
    """What an infinite cache that all share would have had."""
    predicted_cached: int
    """The cached tokens that the decision predicted."""
    predicted_ttft: float
    """The time to the first token that the decision predicted; NaN if it predicted none."""
    prefill: int | None = None
    """The number of the endpoint chosen to compute the prompt, if that is another one."""
    queued: float = nan
    """The part of `ttft` until each engine that it needs has first scheduled it."""
    preempted: int = 0
    """How often it was preempted."""
    reason: str = ""
    """Why it was refused or lost."""
