"""The usage of tokens that a model server reports in a response."""

from collections.abc import Iterable
from typing import Final

import msgspec

from epp.model.request import Usage
from epp.protocol.bodies.coercion import MAX_TOKENS
from epp.protocol.bodies.usage_reader import ReportedUsage

_NOTHING: Final = Usage()
_decode: Final = msgspec.json.Decoder(ReportedUsage).decode


def merge_usage(usage: Usage | None, reports: Iterable[bytes]) -> Usage | None:
    """Return `usage` updated by further `usage` objects (JSON); ignore implausible ones.

    An object replaces the counts that it names and keeps the others: a stream may report its usage
    in several events.
    """
    for each in reports:
        try:
            usage = _after(usage, _decode(each))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return usage


def _after(usage: Usage | None, seen: ReportedUsage) -> Usage:
    before = usage or _NOTHING
    prompt, generated = seen.prompt_tokens, seen.completion_tokens
    if prompt is None:
        prompt = before.prompt_tokens if seen.input_tokens is None else seen.input_tokens
    if generated is None:
        generated = before.completion_tokens if seen.output_tokens is None else seen.output_tokens
    if seen.cache_read_input_tokens is not None:
        return _cached_apart(prompt, generated, seen.cache_read_input_tokens, seen)
    details = seen.prompt_tokens_details or seen.input_tokens_details
    if details is None or details.cached_tokens is None:
        if before.cached_tokens is not None and prompt < before.cached_tokens:
            prompt = before.prompt_tokens  # repeated without the cached tokens
        return Usage(prompt, generated, before.cached_tokens)
    if details.cached_tokens > prompt:
        known = before.cached_tokens
        known = None if known is None or known > prompt else known
        return Usage(prompt, generated, known, implausible=True)
    return Usage(prompt, generated, details.cached_tokens)


def _cached_apart(prompt: int, generated: int, cached: int, seen: ReportedUsage) -> Usage:
    """Return a usage in the words of Anthropic's API, which counts cached tokens apart.

    Model servers with that API count them among `input_tokens`: so does this as long as there are
    no more of them (llm-d-router takes both as they are).
    """
    if cached > prompt:
        prompt += cached + (seen.cache_creation_input_tokens or 0)
        prompt = min(prompt, MAX_TOKENS)
    return Usage(prompt, generated, cached)
