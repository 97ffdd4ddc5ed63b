"""Deciders: whether a stage of a request runs at an endpoint of its own.

Types, parameters and rules are llm-d-router's
(pkg/epp/framework/plugins/scheduling/profilehandler).
"""

from typing import Annotated

import msgspec

from epp.model.decision import Decision
from epp.model.request import InferenceRequest
from epp.policy.effects import without_effect
from epp.policy.plugins import PluginParameters

_ONE_INDEX = without_effect("there is one index of caches")
_Tokens = Annotated[int, msgspec.Meta(ge=0)]


class AlwaysDisaggPdDecider(PluginParameters, frozen=True):
    """Always has the stage run."""

    def wants(self, request: InferenceRequest, decision: Decision | None) -> bool:
        """Return True."""
        return True


class AlwaysDisaggMultimodalDecider(PluginParameters, frozen=True):
    """Has the stage run for requests with an image, a video or a sound."""

    def wants(self, request: InferenceRequest, decision: Decision | None) -> bool:
        """Return whether the request has any."""
        return request.multimodal


class PrefixBasedPdDecider(PluginParameters, frozen=True):
    """Runs the stage if the chosen endpoint would have to compute too much of the prompt.

    `non_cached_tokens` or more are too much; 0: never. The stage does not run for prompts of fewer
    than `prompt_tokens`.
    """

    non_cached_tokens: _Tokens = 0
    prompt_tokens: _Tokens = 0
    prefix_match_info_producer_name: Annotated[str, _ONE_INDEX] = ""

    def wants(self, request: InferenceRequest, decision: Decision | None) -> bool:
        """Return whether that many tokens of the prompt are not cached."""
        if not self.non_cached_tokens or decision is None:
            return False
        uncached = decision.prompt_tokens - decision.predicted_cached_tokens
        return decision.prompt_tokens >= self.prompt_tokens and uncached >= self.non_cached_tokens
