"""A request as routing sees it, the decision made for it, and its usage of tokens."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NewType

import msgspec

from epp.model.candidate import Candidate
from epp.model.endpoint import Endpoint, Target

DEFAULT_FAIRNESS_ID = "default-flow"
"""The flow of requests that name none (llm-d-router)."""

RequestId = NewType("RequestId", str)
"""The picker's own id of one exchange; never the client's `x-request-id`, which may repeat."""


class Api(Enum):
    """The API that a path belongs to. `OTHER` is passed through, routed by load alone."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    CONVERSATIONS = "conversations"
    IMAGES = "images"
    CHAT_RENDER = "chat/render"
    COMPLETIONS_RENDER = "completions/render"
    MESSAGES = "messages"  # Anthropic
    COUNT_TOKENS = "messages/count_tokens"
    GENERATE = "generate"  # vLLM, HTTP
    SGLANG_GENERATE = "sglang/generate"
    GRPC_GENERATE = "grpc/generate"  # vLLM, gRPC
    GRPC_EMBED = "grpc/embed"
    VERTEX_CHAT = "vertex/chat"  # Vertex AI, gRPC
    VERTEX_RAW = "vertex/raw"
    RAW_PREDICT = "raw"  # Vertex AI, HTTP
    OTHER = "other"


TOKEN_BYTES = 4
"""Bytes of a token id in an exact prompt, little-endian."""


class Prompt(msgspec.Struct, frozen=True):
    """One prompt as bytes whose common prefixes are common prefixes of the engine's tokens.

    `exact` prompts hold token ids, `TOKEN_BYTES` each; others hold canonical text, whose bytes a
    token are learned. `marks` are the ends of the messages of a conversation, ascending: offsets
    in tokens into exact prompts, in bytes into others. The bytes before a mark do not depend on
    those after it. `multimodal`: some stand for an image, a video or a sound.
    """

    data: bytes
    exact: bool = False
    marks: Sequence[int] = ()
    multimodal: bool = False


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the policy sees it.

    `model` is the client's name, `target_model` the one that the model server is asked for
    (they differ under a rewrite). `prompts` is empty where the body has none or was not read.
    `subset`, where not None, holds the only targets (`ip:port` or bare `ip`) that may be picked.
    `max_tokens` is the client's limit on generated tokens, None where it gave none. `body` is
    the client's JSON as it came, empty where it was not seen or is none. `peer` is the endpoint
    that a handler chose before, for another stage of the request. `multimodal`: its messages have
    an image, a video or a sound. `rewrite` names the InferenceModelRewrite that set the target
    model.
    """

    id: RequestId
    api: Api = Api.OTHER
    model: str = ""
    target_model: str = ""
    prompts: tuple[Prompt, ...] = ()
    stream: bool = False
    max_tokens: int | None = None
    cache_salt: str = ""
    headers: Mapping[str, str] = {}
    subset: tuple[str, ...] | None = None
    objective: str = ""
    fairness_id: str = DEFAULT_FAIRNESS_ID
    priority: int = 0
    body: bytes = b""
    peer: Endpoint | None = None
    multimodal: bool = False
    rewrite: str = ""


class Score(msgspec.Struct, frozen=True):
    """The values of one scorer, aligned with the decision's candidates.

    `out_of_range`: a value was not in 0..1 (NaN included) and was clamped for the totals; `values`
    holds what the scorer returned.
    """

    plugin: str
    weight: float
    values: Sequence[float]
    out_of_range: bool = False


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoints that a request goes to, and what they were chosen by.

    `endpoints` is the preference order, one entry unless the picker is configured for more.
    `prompt_tokens` and `predicted_cached_tokens` are the estimates made for the first of them;
    `predicted_ttft` is in seconds. `predicted_for` is the candidate that these are for, as it was
    when it was picked; None where no profile made the decision. `candidates` are the endpoints that
    passed the filters, `scores` those of each scorer, `totals` the weighted sums that the picker
    compared. `stages` are the decisions of other profiles that a handler ran, in that order.

    `prefill`, where not None, is the endpoint that computes the prompt in place of the first, and
    the one that the predictions are for. `headers` are set on the request. `targets`, where not
    empty, are what the endpoints are reached at in place of their own, in the same order.
    `disaggregation` says which stages run at endpoints of their own (`decode-only`,
    `prefill-decode`, `encode-decode`, `encode-prefill-decode`); empty where none could.
    """

    endpoints: tuple[Endpoint, ...]
    profile: str = "default"
    prompt_tokens: int = 0
    predicted_cached_tokens: int = 0
    predicted_ttft: float | None = None
    predicted_for: Candidate | None = None
    candidates: Sequence[Candidate] = ()
    scores: Sequence[Score] = ()
    totals: Sequence[float] = ()
    stages: "tuple[Decision, ...]" = ()
    prefill: Endpoint | None = None
    headers: tuple[tuple[str, str], ...] = ()
    targets: tuple[Target, ...] = ()
    disaggregation: str = ""

    def of(self, profile: str) -> "Decision | None":
        """Return the decision of a profile, or this one for an empty name; None without one."""
        if not profile or profile == self.profile:
            return self
        return next((each for each in self.stages if each.profile == profile), None)

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint that is preferred."""
        return self.endpoints[0]

    @property
    def destination(self) -> str:
        """The value of the header `x-gateway-destination-endpoint`.

        GIE's endpoint picker protocol: targets, comma-separated in the order of preference. Ranks
        of one server share a target, which is named once.
        """
        if self.targets:
            return ",".join(dict.fromkeys(self.targets))
        if len(self.endpoints) == 1:
            return self.endpoints[0].target
        return ",".join(dict.fromkeys(endpoint.target for endpoint in self.endpoints))

    def served_at(self, target: Target) -> Target:
        """Return the endpoint's own target for what the proxy says has served."""
        return self.endpoint.target if target in self.targets[:1] else target


class Usage(msgspec.Struct, frozen=True):
    """The tokens that the model server reported; `cached_tokens` is None where it did not say.

    `doubtful`: it reported more cached tokens than the prompt has, which is left out.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    doubtful: bool = False
