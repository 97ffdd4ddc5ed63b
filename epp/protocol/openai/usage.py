"""The usage of tokens that a model server reports in a response."""

from collections.abc import Iterable
from typing import Annotated

import msgspec

from epp.model.request import Usage

_Tokens = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
"""No prompt and no answer is longer: the longest contexts of models are 10 million tokens."""


class _Details(msgspec.Struct):
    cached_tokens: _Tokens | None = None


class _Reported(msgspec.Struct):
    prompt_tokens: _Tokens | None = None
    completion_tokens: _Tokens | None = None
    input_tokens: _Tokens | None = None
    output_tokens: _Tokens | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None


_decoder = msgspec.json.Decoder(_Reported)


def merge_usage(usage: Usage | None, reports: Iterable[bytes]) -> Usage | None:
    """Return `usage` updated by further `usage` objects (JSON); ignore implausible ones.

    An object replaces the counts that it names and keeps the others: a stream may report its usage
    in several events.
    """
    for each in reports:
        try:
            usage = _after(usage, _decoder.decode(each))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return usage


def _after(usage: Usage | None, seen: _Reported) -> Usage:
    prompt, generated, cached = 0, 0, None
    if usage is not None:
        prompt, generated, cached = (
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.cached_tokens,
        )
    if (named := _first(seen.prompt_tokens, seen.input_tokens)) is not None:
        prompt = named
    if (named := _first(seen.completion_tokens, seen.output_tokens)) is not None:
        generated = named
    details = seen.prompt_tokens_details or seen.input_tokens_details
    if details is None or details.cached_tokens is None:
        return Usage(prompt, generated, cached)
    if details.cached_tokens > prompt:
        return Usage(prompt, generated, cached, doubtful=True)
    return Usage(prompt, generated, details.cached_tokens)


def _first(one: int | None, other: int | None) -> int | None:
    return other if one is None else one
