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
    """A request as the policy sees it."""

    id: RequestId
    """The exchange's id."""
    api: Api = Api.OTHER
    """The API that its path belongs to."""
    model: str = ""
    """The model's name, as the client gave it."""
    target_model: str = ""
    """The model that the server is asked for; another one under a rewrite."""
    prompts: tuple[Prompt, ...] = ()
    """Its prompts; empty if the body has none or was not read."""
    stream: bool = False
    """Whether the client asks for a stream."""
    max_tokens: int | None = None
    """The client's limit on generated tokens; None if it gave none."""
    cache_salt: str = ""
    """Separates its blocks from those of requests with another one."""
    headers: Mapping[str, str] = {}
    """The request's headers."""
    subset: tuple[str, ...] | None = None
    """The only targets (`ip:port`, or an `ip`) that may be picked; None: any."""
    objective: str = ""
    """The InferenceObjective that it names."""
    fairness_id: str = DEFAULT_FAIRNESS_ID
    """Whose share of the fleet it counts towards."""
    priority: int = 0
    """Its priority; negative ones may be dropped if the pool is saturated."""
    body: bytes = b""
    """The client's JSON as it came; empty if it was not seen or is not needed."""
    peer: Endpoint | None = None
    """The endpoint that a handler chose before, for another stage of the request."""
    multimodal: bool = False
    """Whether its messages have an image, a video or a sound."""
    rewrite: str = ""
    """The InferenceModelRewrite that set the target model."""


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
    """The endpoints that a request goes to, and what they were chosen by."""

    endpoints: tuple[Endpoint, ...]
    """In the order of preference; one unless the picker is configured for more."""
    profile: str = "default"
    """The profile that decided."""
    prompt_tokens: int = 0
    """The prompts' length, as estimated for the first endpoint."""
    predicted_cached_tokens: int = 0
    """How many of them its cache is predicted to serve."""
    predicted_ttft: float | None = None
    """The predicted time to first token there, in seconds."""
    predicted_for: Candidate | None = None
    """The candidate that the predictions are for, as it was when it was picked.

    None if no profile made the decision."""
    candidates: Sequence[Candidate] = ()
    """The endpoints that passed the filters."""
    scores: Sequence[Score] = ()
    """Those of each scorer."""
    totals: Sequence[float] = ()
    """The weighted sums that the picker compared."""
    stages: "tuple[Decision, ...]" = ()
    """The decisions of other profiles that a handler ran, in that order."""
    prefill: Endpoint | None = None
    """The endpoint that computes the prompt in place of the first; the predictions are for it."""
    headers: tuple[tuple[str, str], ...] = ()
    """Set on the request."""
    targets: tuple[Target, ...] = ()
    """What the endpoints are reached at in place of their own targets, in the same order."""
    disaggregation: str = ""
    """Which stages run at endpoints of their own; empty if none could.

    `decode-only`, `prefill-decode`, `encode-decode` or `encode-prefill-decode`."""

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
    """The tokens that the model server reported; `cached_tokens` is None if it did not say.

    `doubtful`: it reported more cached tokens than the prompt has, which is left out.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    doubtful: bool = False
