"""AIBrix's prefix cache and virtual token counter.

Source: vLLM AIBrix at commit e3e10f9e, 2026-08 (`pkg/plugins/gateway/algorithms/prefix_cache.go`
routeOriginal, `pkg/utils/prefixcacheindexer/hash.go`; `algorithms/vtc/vtc_basic.go`,
`token_tracker.go` and `token_estimator.go`).
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from math import ceil
from statistics import fmean, stdev
from typing import Annotated

from epp.model.decision import Decision
from epp.model.endpoint import EndpointId
from epp.model.request import DEFAULT_FAIRNESS_ID, InferenceRequest
from epp.policy.bounds import BoundedParameters, above_zero, at_least
from epp.policy.client_keys import ClientKey, client_key
from epp.policy.peers.chooser import Choice, Chooser, least, loads_of
from epp.policy.peers.memory.sent_blocks import SentBlocks
from epp.policy.peers.memory.window import NOTHING, WindowSum
from epp.policy.plugins import Candidates, PluginContext, uniform
from epp.policy.scorers.load import lower_is_better

_MINUTE = 60.0
_MAX_USERS = 10_000
"""Users whose service is remembered, at most; then the one idle for longest is dropped."""
_MAX_FORGOTTEN = 10
"""Users that are forgotten at a time."""
_MAX_NOISE = 0.1


class AiBrixPrefixCacheScorer(BoundedParameters, frozen=True):
    """Prefers the endpoint that the longest known prefix was sent to, unless it is too busy.

    1. Loads are this picker's requests in flight. If the largest is more than
       `imbalance_abs_count` above the smallest, only prefixes at the least loaded endpoints count.
    2. Otherwise endpoints are considered that a first block of the prompt was sent to, and whose
       load is at most the mean plus `standard_deviation_factor` standard deviations. Those with the
       highest percentage of its blocks are chosen, and of these the least loaded.
    3. Without any the least loaded ones are chosen.

    Among equals the choice is by chance: all of them score 1, others 0. The index holds
    `block_number` blocks, of all endpoints together, as long as `eviction_duration_mins` after they
    were sent last; the beginning of a prompt goes before its end. There a block is 128 characters,
    here one of the picker's; only the first prompt of a request counts.

    The defaults are the Helm chart's; the code's are 8 and 1, with blocks of 4 characters.
    """

    imbalance_abs_count: Annotated[int, at_least(0, "requests, such as 16")] = 16
    standard_deviation_factor: Annotated[float, at_least(0, "a factor, such as 2")] = 2.0
    block_number: Annotated[int, at_least(1, "blocks, such as 200000")] = 200_000
    eviction_duration_mins: Annotated[float, above_zero("minutes, such as 20")] = 20.0

    def start(self, context: PluginContext) -> "_ByKnownPrefix":
        """Return the started plug-in."""
        seconds = self.eviction_duration_mins * _MINUTE
        return _ByKnownPrefix(self, SentBlocks(context, self.block_number, seconds))


class _ByKnownPrefix(Chooser):
    def __init__(self, settings: AiBrixPrefixCacheScorer, sent: SentBlocks) -> None:
        self._settings = settings
        self._sent = sent

    def _choose(self, request: InferenceRequest, candidates: Candidates) -> Choice:
        loads = loads_of(candidates)
        return self._matching(candidates, loads) or least(loads)

    def _matching(self, candidates: Candidates, loads: dict[EndpointId, int]) -> set[EndpointId]:
        """Return the best of those that have a prefix and are not too busy."""
        chains, values = candidates[0].chains, loads.values()
        if not chains or not chains[0].hashes:
            return set()
        even = max(values) - min(values) <= self._settings.imbalance_abs_count
        among = loads.keys() if even else least(loads)
        spread = stdev(values) if len(loads) > 1 else 0.0
        most = fmean(values) + self._settings.standard_deviation_factor * spread
        blocks = len(chains[0].hashes)
        depths = self._sent.match(chains[0], among, candidates[0].now)
        return least(
            {
                endpoint: (-(100 * depth // blocks), loads[endpoint])
                for endpoint, depth in depths.items()
                if loads[endpoint] <= most
            }
        )


class AiBrixVtcBasicScorer(BoundedParameters, frozen=True):
    """Prefers the endpoint whose place in the list suits the service that the user received.

    A user is a fairness id; requests without one score 1 everywhere, so that chance decides. A
    user's service is the weighted sum of tokens of prompts and, estimated as `output_ratio` times
    these, of responses within the last `window_minutes`. It is counted in `units` of the mean of
    the least and the greatest service of any user, at least `min_tokens`. The cost of the endpoint
    numbered i is

        fairness_weight * |i - min(units, endpoints - 1)|
        + utilization_weight * min(running / max_pod_load, 1) + a random number up to 0.1

    so that users with little service share the first endpoints, others the later ones. Until any
    user was served, the least and the greatest are `min_tokens` and `max_tokens`.
    """

    fairness_weight: Annotated[float, at_least(0, "a weight, such as 1")] = 1.0
    utilization_weight: Annotated[float, at_least(0, "a weight, such as 1")] = 1.0
    max_pod_load: Annotated[float, above_zero("requests, such as 100")] = 100.0
    input_token_weight: Annotated[float, at_least(0, "a weight, such as 1")] = 1.0
    output_token_weight: Annotated[float, at_least(0, "a weight, such as 2")] = 2.0
    output_ratio: Annotated[float, at_least(0, "a ratio, such as 1.5")] = 1.5
    window_minutes: Annotated[float, above_zero("minutes, such as 5")] = 5.0
    min_tokens: Annotated[float, above_zero("tokens, such as 1000")] = 1000.0
    max_tokens: Annotated[float, above_zero("tokens, such as 8000")] = 8000.0

    def start(self, context: PluginContext) -> "_ByService":
        """Return the started plug-in."""
        return _ByService(self, context.below)


class _ByService:
    def __init__(self, settings: AiBrixVtcBasicScorer, below: Callable[[int], int]) -> None:
        self._settings = settings
        self._below = below
        # Users by the time of their last request, the oldest first, with their service as of the
        # last time that it was looked at.
        self._windows: OrderedDict[ClientKey, WindowSum] = OrderedDict()
        self._served: dict[ClientKey, float] = {}

    def score(self, request: InferenceRequest, candidates: Candidates) -> list[float]:
        """Return (highest cost - own) / (highest - lowest)."""
        if not candidates or request.fairness_id == DEFAULT_FAIRNESS_ID:
            return [1.0] * len(candidates)
        settings = self._settings
        served = self._service(client_key(request.fairness_id), candidates[0].now)
        lowest = min(self._served.values(), default=settings.min_tokens)
        highest = max(self._served.values(), default=settings.max_tokens)
        unit = max(settings.min_tokens, (lowest + highest) / 2)
        place = min(served / unit, len(candidates) - 1)
        return lower_is_better(
            [
                settings.fairness_weight * abs(position - place)
                + settings.utilization_weight * min(each.running / settings.max_pod_load, 1)
                + _MAX_NOISE * uniform(self._below)
                for position, each in enumerate(candidates)
            ]
        )

    def _service(self, user: ClientKey, now: float) -> float:
        """Return a user's service within the window, and count it as such from now on."""
        served = self._windows.get(user, NOTHING).total(now)
        if served:
            self._served[user] = served
        elif user in self._windows:
            del self._windows[user], self._served[user]
        return served

    def committed(self, request: InferenceRequest, decision: Decision, now: float) -> None:
        """Count a request for its user."""
        if request.fairness_id == DEFAULT_FAIRNESS_ID:
            return
        user, settings = client_key(request.fairness_id), self._settings
        seconds = settings.window_minutes * _MINUTE
        window = self._windows.setdefault(user, WindowSum(seconds))
        self._windows.move_to_end(user)
        output = ceil(settings.output_ratio * decision.prompt_tokens)
        window.add(
            now,
            settings.input_token_weight * decision.prompt_tokens
            + settings.output_token_weight * output,
        )
        self._served[user] = window.total(now)
        for idle, spent in list(islice(self._windows.items(), _MAX_FORGOTTEN)):
            if len(self._windows) <= _MAX_USERS and spent.total(now):
                break
            del self._windows[idle], self._served[idle]
