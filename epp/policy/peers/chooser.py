"""Scorers that choose an endpoint, or several of which chance picks one."""

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from typing import TypeVar

from epp.model.endpoint import EndpointId
from epp.model.request import InferenceRequest
from epp.policy.plugins import Candidates

Choice = Container[EndpointId]
Rank = TypeVar("Rank", float, tuple[int, int])


class Chooser(ABC):
    """A started scorer that chooses: its choice scores 1, others 0; of several, chance decides."""

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return 1 for the candidates to choose from, 0 for others."""
        if not candidates:
            return []
        chosen = self._choose(request, candidates)
        return [1.0 if each.endpoint.id in chosen else 0.0 for each in candidates]

    @abstractmethod
    def _choose(self, request: InferenceRequest, candidates: Candidates) -> Choice:
        """Return the endpoints to choose from, of one candidate at least."""


def loads_of(candidates: Candidates) -> dict[EndpointId, int]:
    """Return the requests of this picker that are in flight at each endpoint."""
    return {each.endpoint.id: each.requests for each in candidates}


def least(values: Mapping[EndpointId, Rank]) -> set[EndpointId]:
    """Return the endpoints with the lowest value; none without endpoints."""
    lowest = min(values.values(), default=None)
    return {endpoint for endpoint, value in values.items() if value == lowest}
