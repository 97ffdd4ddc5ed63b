"""The wording of /v1/chat/completions, /v1/completions and /v1/embeddings."""

import base64
import math
import random
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from model_server.simulator.engine import Piece
from model_server.simulator.scheduler import Finish, Request
from model_server.simulator.stream import DONE, event, finish_name
from model_server.simulator.usage import usage

_DIMENSIONS = 64


@dataclass(frozen=True, slots=True)
class Head:
    """What all of a call's events share. `created` is unix time in seconds."""

    id: str
    model: str
    created: int
    requests: Sequence[Request]
    details: bool
    include_usage: bool
    continuous_usage: bool = False

    def fields(self, kind: str) -> dict[str, Any]:
        """Give the leading fields of a body of `kind`."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def usage(self) -> dict[str, Any]:
        """Token usage so far."""
        return usage(self.requests, details=self.details)


class _Chunks:
    """What both APIs' events share: fixed bytes around the text, usage, the end."""

    kind = ""

    def __init__(self, head: Head) -> None:
        self.head = head
        fields = msgspec.json.encode(head.fields(self.kind))
        self._prefix = b"data: " + fields[:-1] + b',"choices":[{"index":'
        self._generated = Counter[int]()  # tokens by prompt

    def opening(self) -> bytes:
        """Return nothing: no event precedes the first piece."""
        return b""

    def closing(self) -> bytes:
        """Return the usage, if it was asked for, and the end mark."""
        if not self.head.include_usage:
            return DONE
        counted = self.head.fields(self.kind) | {"choices": [], "usage": self.head.usage()}
        return event(counted) + DONE

    def usage_so_far(self, prompt: int, tokens: int) -> dict[str, Any]:
        """Give the field with a prompt's usage, `tokens` more than before, when asked for."""
        if not self.head.continuous_usage:
            return {}
        self._generated[prompt] += tokens
        read, written = self.head.requests[prompt].prompt_len, self._generated[prompt]
        counted = {"prompt_tokens": read, "total_tokens": read + written}
        return {"usage": counted | {"completion_tokens": written}}

    def ending(self, piece: Piece) -> bytes:
        """Word what follows the choices of a piece's event."""
        more = self.usage_so_far(piece.prompt, piece.tokens)
        return b",%s\n\n" % msgspec.json.encode(more)[1:] if more else b"}\n\n"


class ChatChunks(_Chunks):
    """Events of a streamed chat."""

    kind = "chat.completion.chunk"

    def opening(self) -> bytes:
        """Give the role, as vLLM sends it with the first token."""
        choice = {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        more = self.usage_so_far(0, 0)
        return event(self.head.fields(self.kind) | {"choices": [choice]} | more)

    def piece(self, piece: Piece) -> bytes:
        """One delta."""
        text = msgspec.json.encode(piece.text)
        return b'%s%d,"delta":{"content":%s},"logprobs":null,"finish_reason":%s}]%s' % (
            *(self._prefix, piece.prompt, text),
            *(msgspec.json.encode(finish_name(piece.finish)), self.ending(piece)),
        )


class TextChunks(_Chunks):
    """Events of a streamed completion."""

    kind = "text_completion"

    def piece(self, piece: Piece) -> bytes:
        """One piece of text."""
        return b'%s%d,"text":%s,"logprobs":null,"finish_reason":%s,"stop_reason":null}]%s' % (
            *(self._prefix, piece.prompt, msgspec.json.encode(piece.text)),
            *(msgspec.json.encode(finish_name(piece.finish)), self.ending(piece)),
        )


def whole_chat(
    head: Head, texts: Sequence[str], finishes: Sequence[Finish | None]
) -> dict[str, Any]:
    """Word the body of a chat that was not streamed."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": texts[0], "refusal": None, "tool_calls": []},
        "logprobs": None,
        "finish_reason": finish_name(finishes[0]),
        "stop_reason": None,
    }
    return head.fields("chat.completion") | {"choices": [choice], "usage": head.usage()}


def whole_text(
    head: Head, texts: Sequence[str], finishes: Sequence[Finish | None]
) -> dict[str, Any]:
    """Word the body of a completion that was not streamed."""
    choices = [
        {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_name(finish),
            "stop_reason": None,
        }
        for index, (text, finish) in enumerate(zip(texts, finishes, strict=True))
    ]
    return head.fields("text_completion") | {"choices": choices, "usage": head.usage()}


def whole_embeddings(head: Head, *, base64: bool) -> dict[str, Any]:
    """Word the body: for each prompt a unit vector that depends on the prompt alone."""
    data = [
        {
            "index": index,
            "object": "embedding",
            "embedding": _packed(vector) if base64 else vector,
        }
        for index, vector in enumerate(map(_vector, head.requests))
    ]
    return head.fields("list") | {"data": data, "usage": head.usage()}


def _vector(request: Request) -> list[float]:
    rng = random.Random(request.tokens.tobytes())
    values = [rng.gauss(0.0, 1.0) for _ in range(_DIMENSIONS)]
    norm = math.sqrt(sum(value * value for value in values))
    return [value / norm for value in values]


def _packed(vector: list[float]) -> str:
    """Little-endian float32 in base64, as OpenAI's client asks for by default."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
