"""The plan of a run: its pods, its pickers and their policy, and what fails when.

Everything in it is a frozen value, so a run can take place in another process.
"""

from collections.abc import Sequence
from enum import Enum

import msgspec

from epp.model.pods.outlier_settings import OUTLIERS
from epp.policy.flow.settings import FlowSettings
from epp.protocol.extproc.observation import AUTO, Observation
from epp.replay.engines.contract import Limits
from epp.replay.engines.cost import StepCost

DRAIN_SECONDS = 900.0


class Traffic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is replayed, and how it is changed first."""

    source: str
    """A trace's path, or a workload."""
    seed: int = 0
    """Chooses what is left to chance."""
    strict: bool = False
    """Whether bad lines raise; else they are skipped."""
    minutes: tuple[float, float] | None = None
    """The part of the trace that is taken, from and to."""
    requests: int | None = None
    """How many requests are taken, from the first; None: all."""
    copies: float = 1.0
    """How many copies of it are superposed."""
    rate: float | None = None
    """Requests a second that arrive by chance, in place of the recorded times."""
    users: int | None = None
    """How many users have one conversation after another, in place of the recorded times."""


class PodPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One model server: `ranks` data-parallel engines in step, each with `limits` of its own.

    It computes `speed` times as fast as `cost` says. `role` is the value of the label
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

    With `running` only while more than this many requests run, as a server does that writes tokens
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
    """A policy by its name, with the `text` of its configuration.

    `scrape_seconds`, if set, is the time between its scrapes, whatever the plan says.
    `as_reported`: load is that of the last scrape, as other pickers see it, without what this
    picker has counted since. `flow` says when requests wait in the picker; None: never.
    """

    name: str
    text: str
    scrape_seconds: float | None = None
    as_reported: bool = False
    flow: FlowSettings | None = None


class OraclePolicy(Policy, frozen=True):
    """A policy whose candidates have the truth of the simulated engines (`Oracle`)."""


class RunPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run of one policy. It ends when everything is answered, or after `drain_seconds`."""

    policy: Policy
    """The policy."""
    pods: Sequence[PodPlan]
    """The model servers."""
    seed: int = 0
    """Chooses what is left to chance."""
    pickers: int = 1
    """Replicas, which share the requests in turn."""
    exchange_seconds: float | None = None
    """After how long what one picker has seen reaches the others; None: never."""
    scrape_seconds: float = 1.0
    """Seconds between a picker's scrapes of a pod."""
    observation: Observation = AUTO
    """Which responses are observed to their end."""
    transfer_seconds_per_token: float = 0.0
    """What the KV cache of a prompt takes from one pod to another."""
    faults: Sequence[Fault] = ()
    """What fails, and when."""
    duration: float | None = None
    """No call is sent after this many seconds; None: all are."""
    drain_seconds: float = DRAIN_SECONDS
    """How long after the last call was sent a run ends at the latest."""
    eject_after: int = OUTLIERS.consecutive_failures
    """Failed requests in a row that leave a pod out for a while, as in `epp serve`; 0: never."""
