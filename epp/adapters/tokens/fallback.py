"""Fallback to routing by text: its causes, and the bodies that lead to it."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from epp.errors import WarmpickError
from epp.protocol.bodies.coercion import UNREADABLE

_CHANGES_TOKENS = ("prompt_embeds", "suffix", "truncate_prompt_tokens")
"""Fields that change the tokens of a prompt; a request with one of them is not tokenized."""


class FallbackCause(Enum):
    """Why a request was not tokenized; the names are the `cause` label of a metric."""

    BODY = "the body was not seen"
    LARGE = "the body is larger than `maxBytes`, or the prompt has too many pieces"
    API = "this API's prompts are not tokenized"
    FIELD = "a field of the request changes its tokens in a way that is not modelled"
    MEDIA = "images, audio and video are tokenized by the model server"
    MALFORMED = "the model server will refuse the request"
    TEMPLATE = "the chat template cannot render the request"
    FAILED = "the tokenizer failed"
    SLOW = "tokens did not come in time"
    REFUSED = "the render endpoint refused the request"
    UNAVAILABLE = "the render endpoint cannot be reached"


class TextFallback(WarmpickError):
    """A request cannot be tokenized. `detail` never quotes the client."""

    def __init__(self, cause: FallbackCause, detail: str = "") -> None:
        super().__init__(f"{cause.value}{': ' * bool(detail)}{detail}")
        self.cause = cause
        self.detail = detail


def fields_of(body: bytes) -> dict[str, Any]:
    """Return the fields of a request's body. Raises `TextFallback` if it is not an object."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except UNREADABLE as error:
        raise TextFallback(FallbackCause.MALFORMED, type(error).__name__) from error


def without_changed_tokens(body: Mapping[str, Any], *others: str) -> None:
    """Raise `TextFallback` if a field changes the tokens of a prompt, or one of `others` is set."""
    for field in (*_CHANGES_TOKENS, *others):
        if body.get(field) is not None:
            raise TextFallback(FallbackCause.FIELD, field)
