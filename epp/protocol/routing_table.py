"""What the pool's objects say of requests: how urgent they are, and which model is asked for."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import msgspec
from msgspec.structs import replace

from epp.model.request import InferenceRequest

Below = Callable[[int], int]
"""Draws a number in 0..n-1."""


class WeightedTargets(msgspec.Struct, frozen=True):
    """Models, one of which is asked for.

    `models` and `bounds`, the sums of their weights so far, are aligned, and not empty.
    """

    models: Sequence[str]
    bounds: Sequence[int]

    @classmethod
    def of(cls, weighted: Sequence[tuple[str, int]]) -> "WeightedTargets":
        """Weights are 1 or more."""
        models = [model for model, _ in weighted]
        return cls(models, list(accumulate(weight for _, weight in weighted)))

    def draw(self, below: Below) -> str:
        """Choose a model by weight."""
        if len(self.models) == 1:
            return self.models[0]
        number = below(self.bounds[-1])
        return next(m for m, bound in zip(self.models, self.bounds, strict=True) if number < bound)


class RoutingTable(msgspec.Struct, frozen=True):
    """Priorities by the name of an objective, and targets by the client's model.

    `other` are the targets of all models that `exact` does not name; None: these keep their
    names. A table is swapped whole when anything changes.
    """

    priorities: Mapping[str, int] = {}
    exact: Mapping[str, WeightedTargets] = {}
    other: WeightedTargets | None = None

    def resolve(self, request: InferenceRequest, below: Below) -> InferenceRequest:
        """Set a request's priority and target model; a rewrite wins over the client's header.

        An unknown objective counts as priority 0, as in llm-d-router.
        """
        priority = self.priorities.get(request.objective, 0)
        targets = self.exact.get(request.model, self.other) if request.model else None
        if targets is not None:
            return replace(request, priority=priority, target_model=targets.draw(below))
        return replace(request, priority=priority) if priority else request


NO_ROUTING = RoutingTable()
"""Nothing is known of requests: all are alike, and models keep their names."""
