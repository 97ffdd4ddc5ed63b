"""Which API a path belongs to: the claims of llm-d-router's parsers (llm-d-router, `Claims`)."""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final

from epp.model.request import Api

Claims = Mapping[str, Api]
"""Ends of paths, each from a slash or a colon on, and the API of each."""

OPENAI: Final[Claims] = {
    "/chat/completions": Api.CHAT,
    "/chat/completions/render": Api.CHAT_RENDER,
    "/completions": Api.COMPLETIONS,
    "/completions/render": Api.COMPLETIONS_RENDER,
    "/conversations": Api.CONVERSATIONS,
    "/embeddings": Api.EMBEDDINGS,
    "/images/generations": Api.IMAGES,
    "/responses": Api.RESPONSES,
}
ANTHROPIC: Final[Claims] = {
    "/messages": Api.MESSAGES,
    "/messages/count_tokens": Api.COUNT_TOKENS,
}
VLLM_HTTP: Final[Claims] = {"/inference/v1/generate": Api.GENERATE}
SGLANG_HTTP: Final[Claims] = {"/generate": Api.SGLANG_GENERATE}
VLLM_GRPC: Final[Claims] = {
    "/vllm.grpc.engine.VllmEngine/Embed": Api.GRPC_EMBED,
    "/vllm.grpc.engine.VllmEngine/Generate": Api.GRPC_GENERATE,
}
# A gRPC path is `/package.Service/Method`, and the package has a version: the claim begins at the
# service. `:rawPredict` and its like are the same methods over HTTP (google.api.http).
VERTEX: Final[Claims] = {
    ".PredictionService/ChatCompletions": Api.VERTEX_CHAT,
    ".PredictionService/RawPredict": Api.VERTEX_RAW,
    ".PredictionService/StreamRawPredict": Api.VERTEX_RAW,
    "/PredictionService/ChatCompletions": Api.VERTEX_CHAT,
    "/PredictionService/RawPredict": Api.VERTEX_RAW,
    "/PredictionService/StreamRawPredict": Api.VERTEX_RAW,
    ":rawPredict": Api.RAW_PREDICT,
    ":streamRawPredict": Api.RAW_PREDICT,
}

VERTEX_FRAMED: Final = frozenset((Api.VERTEX_CHAT, Api.VERTEX_RAW))
"""APIs whose messages contain the JSON of other APIs."""
FRAMED: Final = VERTEX_FRAMED | {Api.GRPC_GENERATE, Api.GRPC_EMBED}
"""APIs over gRPC: bodies are frames."""
NAMELESS: Final = frozenset(
    (Api.CONVERSATIONS, Api.GENERATE, Api.SGLANG_GENERATE, Api.RAW_PREDICT, *FRAMED)
)
"""APIs whose bodies may omit the model, as the server has one, or the path names it."""

_LONGEST_PATH: Final = 256
"""Characters of a path up to which its API is kept."""
_KEPT_PATHS: Final = 1024


class ApiTable:
    """The APIs that are read, by the ends of paths; the longest end that fits wins.

    `passthrough`: a path that none fits is passed through unread; without it, it has no API. The
    query and slashes at the end count for nothing, and an end fits whole segments alone.
    """

    def __init__(self, claims: Iterable[Claims], *, passthrough: bool) -> None:
        self.otherwise: Api | None = Api.OTHER if passthrough else None
        """The API of a path that no end fits."""
        ends = {end: api for each in claims for end, api in each.items()}
        self._claims = sorted(ends.items(), key=lambda item: len(item[0]), reverse=True)
        self._known_api_of: Callable[[str], Api | None]
        self._known_api_of = lru_cache(maxsize=_KEPT_PATHS)(self._api_of)

    def api_of(self, path: str) -> Api | None:
        """Return the API of a path; None if no parser reads it."""
        return self._known_api_of(path) if len(path) <= _LONGEST_PATH else self._api_of(path)

    def _api_of(self, path: str) -> Api | None:
        bare = path.partition("?")[0].rstrip("/")
        if not bare.startswith("/"):
            bare = f"/{bare}"
        fitting = (api for end, api in self._claims if bare.endswith(end))
        return next(fitting, self.otherwise)


DEFAULT_APIS: Final = ApiTable((OPENAI, ANTHROPIC, VLLM_HTTP), passthrough=True)
"""The APIs that are read if a configuration names no parsers (llm-d-router, the default list)."""
