"""Ordering policies: which of a flow's waiting requests goes next.

llm-d-router's three by their names, and `LeastPrefillOrder`, which is used if a band names none.
"""

from typing import Protocol, runtime_checkable

import msgspec

from epp.policy.flow.held import HeldRequest, Rank
from epp.policy.plugins import PluginParameters


@runtime_checkable
class OrderingPolicy(Protocol):
    """Orders the requests of one flow. The order of two requests does not change with time."""

    def rank(self, held: HeldRequest) -> Rank:
        """Return the rank of a request; the least goes next."""


class LeastPrefillOrder(msgspec.Struct, frozen=True):
    """The shortest prefill first; a second of waiting is worth `ageing` seconds of prefill."""

    ageing: float

    def rank(self, held: HeldRequest) -> Rank:
        """Return seconds of prefill, and the time of arrival times the ageing."""
        return held.seconds + self.ageing * held.since, held.since


class FcfsOrderingPolicy(PluginParameters, frozen=True):
    """First come, first served."""

    def rank(self, held: HeldRequest) -> Rank:
        """Return the time of arrival."""
        return held.since, 0.0


class EdfOrderingPolicy(PluginParameters, frozen=True):
    """Earliest end of the time to live first; requests without one last."""

    def rank(self, held: HeldRequest) -> Rank:
        """Return the end of the request's time, then the time of arrival."""
        return held.deadline, held.since


class SloDeadlineOrderingPolicy(PluginParameters, frozen=True):
    """Earliest due first token first; requests without an objective last."""

    def rank(self, held: HeldRequest) -> Rank:
        """Return when the first token is due, then the time of arrival."""
        return held.ttft_by, held.since
