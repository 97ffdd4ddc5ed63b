"""Request bodies as typed values. Fields that do not matter to a simulator are ignored."""

from typing import Any, TypeVar

import msgspec

from model_server.simulator.errors import InvalidBody


class StreamOptions(msgspec.Struct, frozen=True):
    """`stream_options`."""

    include_usage: bool | msgspec.UnsetType | None = msgspec.UNSET
    continuous_usage_stats: bool | msgspec.UnsetType | None = msgspec.UNSET


class Common(msgspec.Struct, frozen=True, kw_only=True):
    """What every endpoint that runs a model takes."""

    model: str | None = None
    cache_salt: str | None = None


class Generation(Common, frozen=True, kw_only=True):
    """What every endpoint that generates takes; `seed` changes the text."""

    stream: bool | None = False
    ignore_eos: bool = False
    min_tokens: int = 0
    n: int | None = 1
    seed: int | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None

    @property
    def limit(self) -> int | None:
        """The number of tokens that the client wants; None if it does not say."""
        return self.max_tokens


class Part(msgspec.Struct, frozen=True):
    """One part of a message; only text has a meaning here."""

    type: str
    text: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One chat message."""

    role: str
    content: str | list[Part] | None = None
    tool_calls: list[Any] | None = None


class ChatBody(Generation, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    tools: list[Any] | None = None
    max_completion_tokens: int | None = None
    add_generation_prompt: bool = True

    @property
    def limit(self) -> int | None:
        """The newer of the two fields wins."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionBody(Generation, frozen=True, kw_only=True):
    """POST /v1/completions; a prompt is text, token ids, or a list of either."""

    prompt: str | list[Any]
    max_tokens: int | None = 16


class EmbeddingBody(Common, frozen=True, kw_only=True):
    """POST /v1/embeddings."""

    input: str | list[Any]
    encoding_format: str | None = "float"


class Item(msgspec.Struct, frozen=True):
    """One input item of the Responses API: a message, or a call's arguments or output."""

    type: str = "message"
    role: str = "tool"
    content: str | list[Part] | None = None
    arguments: str | None = None
    output: str | None = None


class ResponsesBody(Generation, frozen=True, kw_only=True):
    """POST /v1/responses."""

    input: str | list[Item]
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    store: bool | None = True
    tools: list[Any] | None = None

    @property
    def limit(self) -> int | None:
        """Read what the Responses API calls `max_output_tokens`."""
        return self.max_output_tokens


class TokenizeBody(msgspec.Struct, frozen=True):
    """POST /tokenize, of a prompt or of a chat."""

    prompt: str | None = None
    messages: list[Message] | None = None
    tools: list[Any] | None = None
    add_generation_prompt: bool = True


Body = TypeVar("Body", bound=msgspec.Struct)


def decode(data: bytes, kind: type[Body]) -> Body:
    """Parse a body; raises InvalidBody for everything that is not a valid one.

    Numbers may be strings, and whole ones floats, as vLLM's pydantic takes them.
    """
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidBody(f"Validation error: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidBody(f"JSON decode error: {error}") from error
    except RecursionError as error:
        raise InvalidBody("JSON decode error: nested too deeply") from error
