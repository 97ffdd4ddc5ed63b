"""The routing table: priorities of requests by objective, and target models by model."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import msgspec

from epp.model.request import InferenceRequest
from epp.values import replaced

Below = Callable[[int], int]
"""Returns a random number in 0..n-1."""


class WeightedTargets(msgspec.Struct, frozen=True):
    """Models, one of which is drawn by weight; `name` is that of the rewrite.

    `bounds` are the cumulative weights of `models`; both have the same length, at least 1.
    """

    models: Sequence[str]
    bounds: Sequence[int]
    name: str = ""

    @classmethod
    def of(cls, weighted: Sequence[tuple[str, int]], name: str = "") -> "WeightedTargets":
        """Return the targets of (model, weight) pairs; weights are 1 or more."""
        models = [model for model, _ in weighted]
        return cls(models, list(accumulate(weight for _, weight in weighted)), name)

    def draw(self, below: Below) -> str:
        """Return a random model, by weight."""
        if len(self.models) == 1:
            return self.models[0]
        number = below(self.bounds[-1])
        return next(m for m, bound in zip(self.models, self.bounds, strict=True) if number < bound)


class RoutingTable(msgspec.Struct, frozen=True):
    """Priorities by the name of an objective, and targets by the request's model.

    `other` are the targets of models that `exact` does not name; None: these are not rewritten. A
    table is immutable, and replaced as a whole when an object changes.
    """

    priorities: Mapping[str, int] = {}
    exact: Mapping[str, WeightedTargets] = {}
    other: WeightedTargets | None = None

    def resolve(self, request: InferenceRequest, below: Below) -> InferenceRequest:
        """Return the request with its priority and target model.

        A rewrite overrides the target model of the request's header; `other` are also those of a
        request without a model.
        """
        # llm-d-router: an unknown objective has priority 0.
        priority = self.priorities.get(request.objective, 0)
        targets = self.exact.get(request.model, self.other)
        if targets is not None:
            target = targets.draw(below)
            return replaced(request, priority=priority, target_model=target, rewrite=targets.name)
        return replaced(request, priority=priority) if priority else request


NO_ROUTING = RoutingTable()
"""The empty table: every priority is 0, and no model is rewritten."""
