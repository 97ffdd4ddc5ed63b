"""One run as it was played: what all figures and plots are made from."""

from collections.abc import Sequence
from math import nan
from typing import NamedTuple

import msgspec

from epp.replay.simulation.outcome import CallOutcome


class PodSample(NamedTuple):
    """The load of the pod numbered `pod` at a time of the run, as its metrics page would say.

    `kv_usage` is the share of its blocks in use, 0..1.
    """

    at: float
    pod: int
    waiting: int
    running: int
    kv_usage: float


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a policy with a seed.

    Runs of one `cell` (its label: workload, pods and load) differ in policy and seed alone, and
    are compared with each other. `outcomes` are all requests; those sent before `began`, the end
    of the warm-up, are left out of every figure. `seconds` is how long the run went on from then,
    in virtual time. `pods` counts the endpoints that `CallOutcome.endpoint` numbers. `samples` are
    taken once a virtual second from each pod, in a long run more seldom. `workload` and `load`
    (requests a second, or a factor on the trace's; NaN for unknown) are the axes of a sweep, beside
    `pods`. `traffic` names what was sent: it is the same where the name is; empty: unknown.
    """

    policy: str
    seed: int
    cell: str
    outcomes: Sequence[CallOutcome]
    seconds: float
    pods: int
    samples: Sequence[PodSample] = ()
    began: float = 0.0
    workload: str = ""
    load: float = nan
    traffic: str = ""
