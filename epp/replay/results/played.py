"""One run as it was played, the source of all figures and plots."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from epp.replay.simulation.outcome import CallOutcome


class PodSample(NamedTuple):
    """The load of the endpoint numbered `pod` at a moment of the run, as on its metrics page."""

    at: float
    pod: int
    waiting: int
    running: int


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one run of a policy with a seed beside its requests."""

    policy: str
    """The policy's label."""
    seed: int
    """The seed of its random numbers."""
    cell: str
    """Runs of one cell differ only in policy and seed, and are compared with each other."""
    seconds: float
    """How long the run went on after the warm-up, in virtual time."""
    pods: int
    """How many pods there were."""
    endpoints: int
    """How many endpoints `CallOutcome.endpoint` numbers: each rank of a pod is one."""
    workload: str = ""
    """The name of the traffic, on an axis of a sweep."""
    load: float = 1.0
    """Copies of the traffic; in the study, a share of what the fleet can serve."""
    traffic: str = ""
    """A digest of what was sent (`sweep.fingerprint`), equal for equal traffic. Empty: unknown."""
    fault: str = ""
    """The first error of a plug-in; empty: there was none."""


class Played(RunFacts, frozen=True, kw_only=True):
    """One run, with its requests."""

    outcomes: Sequence[CallOutcome]
    """All requests; those sent before `began` are left out of every figure."""
    samples: Sequence[PodSample] = ()
    """Taken from each pod once per virtual second, less often in a long run."""
    began: float = 0.0
    """The end of the warm-up."""
