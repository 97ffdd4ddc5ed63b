"""Preble's E2: exploit a cache that has most of a prompt, else explore by load.

Source: "Preble: Efficient Distributed Prompt Scheduling for LLM Serving" (ICLR 2025, arXiv
2407.00023), with the constants of its code at commit 8e7906a, 2024-05
(`preble/global_scheduler_with_time.py`).
"""

from collections import deque
from statistics import fmean, median
from typing import Annotated

from epp.model.candidate import Candidate
from epp.model.decision import Decision
from epp.model.endpoint import EndpointId
from epp.model.request import InferenceRequest
from epp.policy.attribute_sources import PrefixMatchInfo, find_producer
from epp.policy.bounds import BoundedParameters, above_zero, at_least
from epp.policy.peers.chooser import Choice, Chooser, least
from epp.policy.peers.memory.responses import Responses
from epp.policy.peers.memory.window import NOTHING, WindowSum
from epp.policy.plugins import Candidates, PluginContext, when_removed

_SAMPLES = 200
"""Responses whose lengths, and times by endpoint, are remembered."""


class PrebleE2Scorer(BoundedParameters, frozen=True):
    """Prefers an endpoint with most of a prompt cached, else the one with the least load.

    The load of an endpoint is in seconds: of the prefill sent to it in the last `window_seconds`,
    and of decoding its requests in flight, by the mean length of responses and the median time of a
    token there.

    1. Exploit: if an endpoint has more than half of the prompt cached, the least loaded of those
       that have the most of it is chosen.
    2. Explore: otherwise the smallest load with this prompt's prefill is chosen.
    3. Rebalance: once `rebalance_requests` for each endpoint were sent, a request explores instead
       of exploiting if its load would be more than `rebalance_ratio` times that of exploring. The
       prefix is then at both.

    Among equals the choice is by chance: all of them score 1, others 0. Until responses are seen,
    one has `output_tokens`, each of `seconds_per_output_token`. In Preble prefill is a regression
    for one model and GPU, and the cache a tree whose evictions the engines report; here both are
    the picker's own models. Preble moves whole prefixes when it rebalances; here single requests
    move. Blocks that a prompt would evict count in the paper, but by default not in its code, nor
    here.
    """

    window_seconds: Annotated[float, at_least(1, "seconds, such as 180")] = 180.0
    rebalance_ratio: Annotated[float, at_least(1, "a multiple, such as 1.5")] = 1.5
    rebalance_requests: Annotated[int, at_least(0, "requests, such as 50")] = 50
    output_tokens: Annotated[float, above_zero("tokens, such as 45")] = 45.0
    seconds_per_output_token: Annotated[float, above_zero("seconds, such as 0.15")] = 0.15
    prefix_match_info_producer_name: str = ""

    def start(self, context: PluginContext) -> "_E2":
        """Return the started plug-in."""
        producer = find_producer(context, self.prefix_match_info_producer_name, PrefixMatchInfo)
        return _E2(self, producer, context)


class _E2(Chooser):
    def __init__(
        self, settings: PrebleE2Scorer, matches: PrefixMatchInfo, context: PluginContext
    ) -> None:
        self._settings = settings
        self._matches = matches
        self._sent = 0
        self._work: dict[EndpointId, WindowSum] = {}
        self._steps: dict[EndpointId, _Median] = {}
        self._outputs = deque([settings.output_tokens], _SAMPLES)
        self._responses = Responses(context, self._learn)
        when_removed(context.subscribe, self._forget)

    def _choose(self, request: InferenceRequest, candidates: Candidates) -> Choice:
        loads = self._loads(candidates)
        costs = {
            each.endpoint.id: loads[each.endpoint.id] + each.prefill_seconds for each in candidates
        }
        matches = self._matches.prefix_matches(request, candidates)
        most = max(each.matched for each in matches)
        if 2 * most > matches[0].total:
            there = {
                each.endpoint.id: loads[each.endpoint.id]
                for each, match in zip(candidates, matches, strict=True)
                if match.matched == most
            }
            early = self._sent < self._settings.rebalance_requests * len(candidates)
            bound = self._settings.rebalance_ratio * min(costs.values())
            if early or min(there.values()) <= bound:
                return least(there)
        return least(costs)

    def _loads(self, candidates: Candidates) -> dict[EndpointId, float]:
        output = fmean(self._outputs)
        return {each.endpoint.id: self._load(each, output) for each in candidates}

    def _load(self, candidate: Candidate, output: float) -> float:
        endpoint = candidate.endpoint.id
        work, steps = self._work.get(endpoint, NOTHING), self._steps.get(endpoint)
        step = self._settings.seconds_per_output_token if steps is None else steps.value
        return work.total(candidate.now) + candidate.requests * output * step

    def committed(self, request: InferenceRequest, decision: Decision, now: float) -> None:
        """Add a prompt's prefill to the load of the endpoint that computes it."""
        where = decision.endpoint if decision.prefill is None else decision.prefill
        seen = [each for stage in (decision, *decision.stages) for each in stage.candidates]
        costs = (each.prefill_seconds for each in seen if each.endpoint.id == where.id)
        work = self._work.setdefault(where.id, WindowSum(self._settings.window_seconds))
        work.add(now, next(costs, 0.0))
        self._sent += 1

    def _learn(self, endpoint: EndpointId, tokens: int, step: float | None, _now: float) -> None:
        self._outputs.append(tokens)
        if step is not None:
            first = self._settings.seconds_per_output_token
            self._steps.setdefault(endpoint, _Median(first)).add(step)

    def _forget(self, endpoint: EndpointId) -> None:
        self._work.pop(endpoint, None)
        self._steps.pop(endpoint, None)


class _Median:
    """The median of the last numbers."""

    def __init__(self, first: float) -> None:
        self.value = first
        self._last = deque([first], _SAMPLES)

    def add(self, number: float) -> None:
        """Add one more."""
        self._last.append(number)
        self.value = median(self._last)
