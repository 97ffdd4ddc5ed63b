"""Deciders: whether a stage of a request runs at an endpoint of its own.

Types, parameters and rules are llm-d-router's
(pkg/epp/framework/plugins/scheduling/profilehandler).
"""

from typing import Annotated

import msgspec

from epp.model.decision import Decision
from epp.model.request import InferenceRequest
from epp.policy.plugins import PluginParameters

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
    """Has the stage run for prompts of which the endpoint that was chosen has too little cached.

    `non_cached_tokens` not cached are too little; 0: never. Prompts of fewer than `prompt_tokens`
    never count.
    """

    non_cached_tokens: _Tokens = 0
    prompt_tokens: _Tokens = 0

    def wants(self, request: InferenceRequest, decision: Decision | None) -> bool:
        """Return whether that many tokens of the prompt are not cached."""
        if not self.non_cached_tokens or decision is None:
            return False
        uncached = decision.prompt_tokens - decision.predicted_cached_tokens
        return decision.prompt_tokens >= self.prompt_tokens and uncached >= self.non_cached_tokens
