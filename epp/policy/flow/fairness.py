"""Fairness policies: which flow of a priority band goes next.

A flow has a position in virtual time, which advances by the cost of each request that it sends; the
flow that is farthest behind goes next (start-time fair queueing: Goyal, Vin and Cheng 1996).
Policies differ in the cost of a request: its work, or 1 for turns. A policy that compares flows by
something that changes with time has `scores` instead.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from epp.policy.flow.held import HeldRequest
from epp.policy.plugins import PluginParameters

ONLY_FLOW = "all"
"""The flow of every request if flows are not distinguished."""
_LONGEST_ID = 256
"""Characters of a fairness id that are kept; the rest is ignored."""


@runtime_checkable
class FairnessPolicy(Protocol):
    """Shares a priority band between flows."""

    def flow_of(self, held: HeldRequest) -> str:
        """Return the flow that a request counts towards."""

    def cost(self, held: HeldRequest) -> float:
        """Return how far its flow advances in virtual time once a request is sent."""


@runtime_checkable
class ScoringFairnessPolicy(FairnessPolicy, Protocol):
    """Shares a priority band by comparing the flows each time."""

    def scores(self, heads: Sequence[HeldRequest], now: float) -> Sequence[float]:
        """Return one number for the next request of each flow; the greatest goes next."""


def flow_by_fairness_id(held: HeldRequest) -> str:
    """Return the fairness id of a request as its flow."""
    return held.request.fairness_id[:_LONGEST_ID]


class StartTimeFairness(msgspec.Struct, frozen=True):
    """Equal shares of the engines' time: used if a band names no policy."""

    flow_of = staticmethod(flow_by_fairness_id)

    def cost(self, held: HeldRequest) -> float:
        """Return the engine's seconds that the request takes."""
        return held.work


class RoundRobinFairnessPolicy(PluginParameters, frozen=True):
    """One request of each flow in turn, by the flows' names."""

    flow_of = staticmethod(flow_by_fairness_id)

    def cost(self, held: HeldRequest) -> float:
        """Return 1, for one turn."""
        return 1.0


class GlobalStrictFairnessPolicy(PluginParameters, frozen=True):
    """The order of the requests alone, whatever their flows."""

    def flow_of(self, held: HeldRequest) -> str:
        """Return the one flow of all requests."""
        return ONLY_FLOW

    def cost(self, held: HeldRequest) -> float:
        """Return 0: no flow advances."""
        return 0.0
