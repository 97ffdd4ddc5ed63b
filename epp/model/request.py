"""A request as routing sees it, and its usage of tokens."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import inf
from typing import Final, NewType

from mypy_extensions import mypyc_attr

from epp.model.endpoint import Endpoint
from epp.values import Value

DEFAULT_FAIRNESS_ID: Final = "default-flow"
"""The flow of requests that name none (llm-d-router)."""

RequestId = NewType("RequestId", str)
"""The picker's own id of one exchange; never the client's `x-request-id`, which may repeat."""


class Api(StrEnum):
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


TOKEN_BYTES: Final = 4
"""Bytes of a token id in an exact prompt, little-endian."""


@mypyc_attr(free_list_len=1, acyclic=True)
class Prompt(Value):
    """One prompt as bytes; common prefixes of bytes are common prefixes of the engine's tokens.

    `exact` prompts hold token ids, `TOKEN_BYTES` each; others hold canonical text, whose bytes per
    token are learned. `marks` are the ends of the messages of a conversation, ascending: offsets in
    tokens into exact prompts, in bytes into others. The bytes before a mark do not depend on those
    after it. `multimodal`: some of it stands for an image, a video or a sound.
    """

    def __init__(
        self,
        data: bytes,
        exact: bool = False,  # noqa: FBT001, FBT002
        marks: Sequence[int] = (),
        multimodal: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        self.data: Final = data
        self.exact: Final = exact
        self.marks: Final = marks
        self.multimodal: Final = multimodal


@mypyc_attr(free_list_len=1, acyclic=True)
class InferenceRequest(Value):
    """A request as the policy sees it."""

    def __init__(  # noqa: PLR0913, PLR0915 (one fact each)
        self,
        *,
        id: RequestId,  # noqa: A002 (what the rest of the product calls it)
        api: Api = Api.OTHER,
        model: str = "",
        target_model: str = "",
        prompts: tuple[Prompt, ...] = (),
        stream: bool = False,
        max_tokens: int | None = None,
        n: int = 1,
        cache_salt: str = "",
        headers: Mapping[str, str] = {},
        subset: tuple[str, ...] | None = None,
        objective: str = "",
        fairness_id: str = DEFAULT_FAIRNESS_ID,
        priority: int = 0,
        body: bytes = b"",
        size: int = 0,
        most_wait: float = inf,
        peer: Endpoint | None = None,
        multimodal: bool = False,
        rewrite: str = "",
        skip_reading_prefix_cache: bool = False,
        response_id: str = "",
    ) -> None:
        self.id: Final = id
        """The exchange's id."""
        self.api: Final = api
        """The API that its path belongs to."""
        self.model: Final = model
        """The model's name, as the client gave it."""
        self.target_model: Final = target_model
        """The model that the server is asked for; another one under a rewrite."""
        self.prompts: Final = prompts
        """Its prompts; empty if the body has none or was not read."""
        self.stream: Final = stream
        """Whether the client asks for a stream."""
        self.max_tokens: Final = max_tokens
        """The client's limit on the tokens of an answer; None if it gave none."""
        self.n: Final = n
        """How many answers to each prompt the client asks for."""
        self.cache_salt: Final = cache_salt
        """A salt: requests share cached blocks only with those that have the same one."""
        self.headers: Final = headers
        """The request's headers."""
        self.subset: Final = subset
        """The only targets (`ip:port`) or addresses (`ip`) that may be picked; None: any."""
        self.objective: Final = objective
        """The InferenceObjective that it names."""
        self.fairness_id: Final = fairness_id
        """The owner of the share of the fleet that it counts towards."""
        self.priority: Final = priority
        """Its priority; requests of negative priority may be dropped if the pool is saturated."""
        self.body: Final = body
        """The client's JSON as it came; empty if it was not seen or is not needed."""
        self.size: Final = size
        """Bytes of its body that came."""
        self.most_wait: Final = most_wait
        """Seconds for which the proxy lets it wait for a decision."""
        self.peer: Final = peer
        """The endpoint that a handler chose before, for another stage of the request."""
        self.multimodal: Final = multimodal
        """Whether its messages have an image, a video or a sound."""
        self.rewrite: Final = rewrite
        """The InferenceModelRewrite that set the target model."""
        self.skip_reading_prefix_cache: Final = skip_reading_prefix_cache
        """Whether an engine computes all of its prompts, even cached parts (vLLM)."""
        self.response_id: Final = response_id
        """The earlier response that it continues, or is about; empty without one."""

    def without_text(self, fairness_id: str | None = None) -> "InferenceRequest":
        """Return the request without its prompts and its body.

        `fairness_id`, if given, is an equal string that many requests share.
        """
        return InferenceRequest(
            id=self.id,
            api=self.api,
            model=self.model,
            target_model=self.target_model,
            stream=self.stream,
            max_tokens=self.max_tokens,
            n=self.n,
            cache_salt=self.cache_salt,
            headers=self.headers,
            subset=self.subset,
            objective=self.objective,
            fairness_id=self.fairness_id if fairness_id is None else fairness_id,
            priority=self.priority,
            size=self.size,
            most_wait=self.most_wait,
            peer=self.peer,
            multimodal=self.multimodal,
            rewrite=self.rewrite,
            skip_reading_prefix_cache=self.skip_reading_prefix_cache,
            response_id=self.response_id,
        )


@mypyc_attr(free_list_len=1, acyclic=True)
class Usage(Value):
    """The tokens that the model server reported; `cached_tokens` is None if it did not say.

    `implausible`: it reported more cached tokens than the prompt has, which is left out.
    """

    def __init__(
        self,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        cached_tokens: int | None = None,
        implausible: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        self.prompt_tokens: Final = prompt_tokens
        self.completion_tokens: Final = completion_tokens
        self.cached_tokens: Final = cached_tokens
        self.implausible: Final = implausible
