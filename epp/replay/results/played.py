"""One run as it was played: what all figures and plots are made from."""

from collections.abc import Sequence
from math import nan
from typing import NamedTuple

import msgspec

from epp.replay.simulation.outcome import CallOutcome


class PodSample(NamedTuple):
    """The load of the endpoint numbered `pod` at a time of the run, as its metrics page would say.

    `kv_usage` is the share of its blocks in use, 0..1.
    """

    at: float
    pod: int
    waiting: int
    running: int
    kv_usage: float


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one run of a policy with a seed beside its requests."""

    policy: str
    """The policy's label."""
    seed: int
    """The seed of its random numbers."""
    cell: str
    """Runs of one cell differ in policy and seed alone, and are compared with each other."""
    seconds: float
    """How long the run went on after the warm-up, in virtual time."""
    pods: int
    """How many pods there were."""
    endpoints: int
    """How many endpoints `CallOutcome.endpoint` numbers: each rank of a pod is one."""
    workload: str = ""
    """The name of the traffic, on an axis of a sweep."""
    load: float = nan
    """Requests a second, or a factor on the trace's; NaN if unknown."""
    traffic: str = ""
    """What was sent; the same if the name is. Empty: unknown."""
    fault: str = ""
    """The first error of a plug-in; empty: there was none."""


class Played(RunFacts, frozen=True, kw_only=True):
    """One run, with its requests."""

    outcomes: Sequence[CallOutcome]
    """All requests; those sent before `began` are left out of every figure."""
    samples: Sequence[PodSample] = ()
    """Taken from each pod once a virtual second, in a long run more seldom."""
    began: float = 0.0
    """The end of the warm-up."""
