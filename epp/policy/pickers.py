"""The built-in pickers: by score, by predicted time to first token, or by simpler means.

`max-score-picker`, `weighted-random-picker` and `random-picker` are llm-d-router's. Each names
`maxNumOfEndpoints` endpoints, best first, and breaks ties at random.
"""

from collections.abc import Sequence
from math import inf, log
from typing import ClassVar

from epp.policy.choice import apart, best, ttft_costs
from epp.policy.plugins import Candidates, PickContext, PluginParameters, uniform


class MaxScorePicker(PluginParameters, frozen=True):
    """Picks the highest total of weighted scores."""

    max_num_of_endpoints: int = 1

    def pick(
        self, candidates: Candidates, totals: Sequence[float], context: PickContext
    ) -> Sequence[int]:
        """Return the positions of the highest totals."""
        return best([-total for total in totals], self.max_num_of_endpoints, context)


class WeightedRandomPicker(PluginParameters, frozen=True):
    """Picks at random, each candidate with a probability in proportion to its total."""

    max_num_of_endpoints: int = 1

    def pick(
        self, candidates: Candidates, totals: Sequence[float], context: PickContext
    ) -> Sequence[int]:
        """Return the positions of the highest U^(1 / total), for U random in 0..1.

        Totals of 0 and less come last, in random order (Efraimidis and Spirakis 2006, A-Res).
        """
        # In logarithms, so that small totals do not underflow: -log(U) / total, the lowest first.
        below = context.below
        costs = [-log(1 - uniform(below)) / each if each > 0 else inf for each in totals]
        return best(costs, self.max_num_of_endpoints, context)


class RandomPicker(PluginParameters, frozen=True):
    """Picks a candidate at random, each with the same probability."""

    uses_totals: ClassVar[bool] = False
    max_num_of_endpoints: int = 1

    def pick(
        self, candidates: Candidates, totals: Sequence[float], context: PickContext
    ) -> Sequence[int]:
        """Return random positions."""
        return best([0.0] * len(candidates), self.max_num_of_endpoints, context)


class LeastTtftPicker(PluginParameters, frozen=True):
    """Picks the lowest cost in seconds of this prompt's first token (`ttft_costs`).

    Costs are not totals; `least-ttft-scorer` makes scores of them for `max-score-picker`.
    """

    uses_totals: ClassVar[bool] = False
    max_num_of_endpoints: int = 1

    def pick(
        self, candidates: Candidates, totals: Sequence[float], context: PickContext
    ) -> Sequence[int]:
        """Return the positions of the lowest costs; with other replicas `apart` from theirs."""
        costs: Sequence[float] = ttft_costs(candidates)
        if context.unseen is not None:
            costs = apart(costs, candidates, context.unseen, context.turn)
        return best(costs, self.max_num_of_endpoints, context)


class LeastRequestPicker(PluginParameters, frozen=True):
    """Picks the endpoint with the fewest requests of this picker in flight."""

    uses_totals: ClassVar[bool] = False
    max_num_of_endpoints: int = 1

    def pick(
        self, candidates: Candidates, totals: Sequence[float], context: PickContext
    ) -> Sequence[int]:
        """Return the positions with the fewest requests."""
        return best([each.requests for each in candidates], self.max_num_of_endpoints, context)


class RoundRobinPicker(PluginParameters, frozen=True):
    """Picks the candidates in turn."""

    uses_totals: ClassVar[bool] = False

    def pick(
        self, candidates: Candidates, totals: Sequence[float], context: PickContext
    ) -> Sequence[int]:
        """Return the position `turn` modulo the number of candidates."""
        return (context.turn % len(candidates),)
