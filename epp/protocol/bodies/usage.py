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
        prompt = before.prompt_tokens if seen.input_tokens is None else _input(seen)
    if generated is None:
        generated = before.completion_tokens if seen.output_tokens is None else seen.output_tokens
    details = seen.prompt_tokens_details or seen.input_tokens_details
    cached = seen.cache_read_input_tokens
    if cached is None and details is not None:
        cached = details.cached_tokens
    if cached is None:
        if before.cached_tokens is not None:  # repeated without the cached tokens, perhaps
            prompt = max(prompt, before.prompt_tokens)
        return Usage(prompt, generated, before.cached_tokens)
    if cached > prompt:
        known = before.cached_tokens
        known = None if known is None or known > prompt else known
        return Usage(prompt, generated, known, implausible=True)
    return Usage(prompt, generated, cached)


def _input(seen: ReportedUsage) -> int:
    """Return the length of a prompt in the words of the Responses API, or of Anthropic's.

    Anthropic's API counts cached tokens apart, and so do vLLM, SGLang and llama.cpp in it
    (llm-d-router takes `input_tokens` as it is).
    """
    apart = (seen.cache_read_input_tokens, seen.cache_creation_input_tokens)
    return min(sum((count or 0 for count in apart), seen.input_tokens or 0), MAX_TOKENS)
