"""KubeAI's prefix hash: consistent hashing with bounded loads of how a conversation begins.

Source: KubeAI 0.22.1 (`internal/loadbalancer/balance_chwbl.go`, `api/k8s/v1/model_types.go`,
`api/openai/v1/chat_completions.go` `Prefix`).
"""

from math import inf
from typing import Annotated

from epp.model.request import InferenceRequest
from epp.policy.bounds import BoundedParameters, at_least, within
from epp.policy.peers.chooser import Choice, Chooser, loads_of
from epp.policy.peers.hash_ring import HashRing, opening_key
from epp.policy.plugins import Candidates, PluginContext


class KubeAiChwblScorer(BoundedParameters, frozen=True):
    """Prefers the endpoint that the beginning of the conversation hashes to, unless it is loaded.

    The first endpoint after the key's place on the ring is chosen whose requests in flight are at
    most `mean_load_factor` percent of the mean, (all + 1) / endpoints. Each endpoint has
    `replication` points on the ring.

    The key is the beginning of the user's first message, up to `prefix_char_length` characters.
    Here it is a block of the prompt that ends there or soon after, and covers all that precedes it:
    system prompts and adapters have different keys, in KubeAI only adapters. In prompts that came
    as tokens the first message is a system prompt if the number of messages is even. A prompt of
    less than a block counts whole.
    """

    mean_load_factor: Annotated[int, at_least(100, "percent, such as 125")] = 125
    replication: Annotated[int, within(1, 10_000, "points, such as 256")] = 256
    prefix_char_length: Annotated[int, at_least(1, "characters, such as 100")] = 100

    def start(self, context: PluginContext) -> "_OnRing":
        """Return the started plug-in."""
        return _OnRing(self, context)


class _OnRing(Chooser):
    def __init__(self, settings: KubeAiChwblScorer, context: PluginContext) -> None:
        self._settings = settings
        self._ring = HashRing(context.subscribe, settings.replication)

    def _choose(self, request: InferenceRequest, candidates: Candidates) -> Choice:
        loads = loads_of(candidates)
        self._ring.add(loads)
        key = opening_key(request, candidates[0].chains, self._settings.prefix_char_length)
        most = (sum(loads.values()) + 1) / len(loads) * self._settings.mean_load_factor / 100
        return (next(each for each in self._ring.walk(key) if loads.get(each, inf) <= most),)
