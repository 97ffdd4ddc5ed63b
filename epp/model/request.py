"""A request as routing sees it, and its usage of tokens."""

from collections.abc import Mapping, Sequence
from enum import Enum
from math import inf
from typing import NewType

import msgspec

from epp.model.endpoint import Endpoint

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
    size: int = 0
    """Bytes of its body that came."""
    most_wait: float = inf
    """Seconds for which the proxy lets it wait for a decision."""
    peer: Endpoint | None = None
    """The endpoint that a handler chose before, for another stage of the request."""
    multimodal: bool = False
    """Whether its messages have an image, a video or a sound."""
    rewrite: str = ""
    """The InferenceModelRewrite that set the target model."""


class Usage(msgspec.Struct, frozen=True):
    """The tokens that the model server reported; `cached_tokens` is None if it did not say.

    `doubtful`: it reported more cached tokens than the prompt has, which is left out.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    doubtful: bool = False
