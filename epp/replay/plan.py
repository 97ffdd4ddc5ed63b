"""The plan of a run: which pods, which pickers with which policy, what happens to whom, and when.

Everything in it is a frozen value, so that a run can take place in another process.
"""

from collections.abc import Sequence
from enum import Enum

import msgspec

from epp.model.pods.outlier_detection import OUTLIERS
from epp.protocol.extproc.observation import AUTO, Observation
from epp.replay.engines.contract import Limits
from epp.replay.engines.cost import StepCost

SCRAPE_SECONDS = 1.0
DRAIN_SECONDS = 900.0


class Traffic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is replayed: a trace's path or a workload (`source`), and what is made of it.

    Of a trace, `minutes` (from, to) and the first `requests` are taken, then `copies` of it
    superposed. In place of the recorded times `rate` requests a second arrive by chance, or
    `users` have one conversation after another. `strict`: bad lines raise.
    """

    source: str
    seed: int = 0
    strict: bool = False
    minutes: tuple[float, float] | None = None
    requests: int | None = None
    copies: float = 1.0
    rate: float | None = None
    users: int | None = None


class PodPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model server of `ranks` data-parallel engines in step, each with `limits` of its own.

    A server computes `speed` times as fast as `cost` says. `role` is the value of the label
    `llm-d.ai/role`, empty for pods that serve whole requests.
    """

    limits: Limits = Limits()
    cost: StepCost = StepCost()
    speed: float = 1.0
    role: str = ""
    ranks: int = 1


class FaultKind(Enum):
    """What can happen to a pod."""

    DIE = "die"
    """It is gone with all it had; after `seconds` it is back, cold. Without them it stays away."""
    STALL = "stall"
    """It computes nothing for `seconds`, and answers no scrape."""
    HANG = "hang"
    """It accepts requests and computes nothing for `seconds`; its metrics stay as they are."""
    FAIL = "fail"
    """It answers each new request at once with an error for `seconds`; without them for good."""
    LATE = "late"
    """It serves, and answers scrapes too late for `seconds`; without them for good.

    With `running` only while more than so many requests run, as a server does that writes tokens
    and pages in one loop.
    """
    SLOW = "slow"
    """It computes `factor` times as fast for `seconds`; without them for good."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happens to the pod numbered `pod` at `at` seconds."""

    pod: int
    kind: FaultKind
    at: float
    seconds: float | None = None
    factor: float = 1.0
    running: int | None = None


class Policy(msgspec.Struct, frozen=True):
    """A policy under its name: the `text` of its configuration.

    `scrape_seconds`, where set, lie between its scrapes, whatever the plan says. `as_reported`:
    load is that of the last scrape, as other pickers see it, without what the picker's own books
    say has come since.
    """

    name: str
    text: str
    scrape_seconds: float | None = None
    as_reported: bool = False


class OraclePolicy(Policy, frozen=True):
    """A policy whose candidates have the truth of the simulated engines (`Oracle`)."""


class RunPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run of one policy.

    `pickers` share the requests in turn; what one has seen the others hear after
    `exchange_seconds`, or never where that is None. Each scrapes each pod every `scrape_seconds`,
    and observes responses as `observation` says. `transfer_seconds_per_token` is what the KV cache
    of a prompt takes from one pod to another. No call is sent after `duration` seconds. A run ends
    when all is answered, and at most `drain_seconds` after the last call was sent. A pod that
    failed `eject_after` requests in a row is left out for a while, as in `epp serve`; 0: never.
    """

    policy: Policy
    pods: Sequence[PodPlan]
    seed: int = 0
    pickers: int = 1
    exchange_seconds: float | None = None
    scrape_seconds: float = SCRAPE_SECONDS
    observation: Observation = AUTO
    transfer_seconds_per_token: float = 0.0
    faults: Sequence[Fault] = ()
    duration: float | None = None
    drain_seconds: float = DRAIN_SECONDS
    eject_after: int = OUTLIERS.consecutive_failures
