"""LMetric: the product of a prompt's cost and of the engine's load.

Source: "LMetric: Simple is Better - Multiplication May Be All You Need for LLM Request Scheduling"
(arXiv 2603.15202, 2026), as llm-d-router's pull request 2351 has it, with its type, parameters and
score.
"""

import msgspec

from epp.model.request import InferenceRequest
from epp.policy.attribute_sources import InFlightLoad, PrefixMatchInfo, find_producer
from epp.policy.bounds import BoundedParameters
from epp.policy.plugins import Candidates, PluginContext
from epp.policy.scorers.load import lower_is_better


class LMetricScorer(BoundedParameters, frozen=True):
    """Prefers the smallest product of new prefill tokens and batch size.

    New prefill tokens are those of the prompt that the endpoint has not cached, at least 1, since
    an engine always computes the last one. The batch is this picker's requests in flight there and
    the request itself; without it all idle endpoints would be equal, whatever they have cached.
    There is nothing to tune, as a factor on either number does not change the order.
    """

    prefix_match_info_producer_name: str = ""
    in_flight_load_producer_name: str = ""

    def start(self, context: PluginContext) -> "_ByProduct":
        """Return the started plug-in."""
        return _ByProduct(
            find_producer(context, self.prefix_match_info_producer_name, PrefixMatchInfo),
            find_producer(context, self.in_flight_load_producer_name, InFlightLoad),
        )


class _ByProduct(msgspec.Struct, frozen=True):
    matches: PrefixMatchInfo
    loads: InFlightLoad

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return (largest - own) / (largest - smallest); 1 for all if they are equal."""
        matches = self.matches.prefix_matches(request, candidates)
        loads = self.loads.in_flight(request, candidates)
        return lower_is_better(
            [
                max(1, match.total - match.matched) * (load.requests + 1)
                for match, load in zip(matches, loads, strict=True)
            ]
        )
