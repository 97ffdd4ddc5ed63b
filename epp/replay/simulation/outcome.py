"""What became of one request of a run."""

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
    """The run was over before it was."""


class CallOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One request; times are in seconds, counts in tokens.

    `at` is when the client sent it, in the run's time. `ttft` and `end_to_end` count from then,
    and `tpot` is the mean time of each token after the first; they are NaN where it never came so
    far. `queued` is the part of `ttft` in which it waited until an engine first scheduled it, where
    prefill is apart until both did: the rest is prefill, and the transfer between them.
    `endpoint` is where it was sent, -1 for nowhere, by its number in the fleet. `cached` is
    what the engine that computed the prompt found in its cache, `reusable` what an infinite cache
    shared by all would have had, `predicted_cached` and `predicted_ttft` what the decision said
    (NaN where it did not). `preempted` counts its preemptions. `reason` says why it was refused or
    lost.
    """

    call: int
    session: int
    turn: int
    at: float
    status: CallStatus
    endpoint: int
    prompt: int
    generated: int
    ttft: float
    tpot: float
    end_to_end: float
    cached: int
    reusable: int
    predicted_cached: int
    predicted_ttft: float
    queued: float = nan
    preempted: int = 0
    reason: str = ""
