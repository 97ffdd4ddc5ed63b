"""Responses of vLLM's render endpoints, converted to prompts.

Their fields are those of vLLM 0.32 `GenerateRequest` and `TokenizeResponse`. All tokens of an
image, a sound or a video are one placeholder; vLLM tells media apart by their hash, an extra key
of each block that one overlaps. Here the placeholders are replaced by numbers made of that hash,
so that equal media at the same offset are equal tokens and other media are not.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from epp.adapters.tokens.fallback import FallbackCause, TextFallback
from epp.adapters.tokens.packed_ids import packed
from epp.model.request import Prompt
from epp.protocol.openai.token_prompts import medium_ids


class _Range(msgspec.Struct):
    offset: int
    length: int


class _Features(msgspec.Struct):
    mm_hashes: dict[str, list[str | None]] = {}
    mm_placeholders: dict[str, list[_Range]] = {}


class Rendered(msgspec.Struct):
    """One prompt of a response of `/render`."""

    token_ids: list[int]
    features: _Features | None = None


class Tokenized(msgspec.Struct):
    """One prompt of a response of `/tokenize`."""

    tokens: list[int]


def prompt_of(rendered: Rendered) -> Prompt:
    """Return the prompt. Raises `TextFallback` for media without a hash."""
    ids = rendered.token_ids
    features = rendered.features or _Features()
    for modality, ranges in features.mm_placeholders.items():
        hashes = features.mm_hashes.get(modality, [])
        if len(hashes) != len(ranges) or None in hashes:
            raise TextFallback(FallbackCause.MEDIA, "the endpoint names no hash")
        for name, place in zip(hashes, ranges, strict=True):
            _replace(ids, place, str(name))
    return exact(ids)


def _replace(ids: list[int], place: _Range, name: str) -> None:
    end = place.offset + place.length
    if not 0 <= place.offset <= end <= len(ids):
        raise TextFallback(FallbackCause.FAILED, "a placeholder outside the prompt")
    ids[place.offset : end] = medium_ids(name, place.length)


def exact(ids: Sequence[int]) -> Prompt:
    """Return token ids as a prompt. Raises `TextFallback` for an id outside 0..2^32-1."""
    try:
        return Prompt(packed(ids), exact=True)
    except OverflowError as error:
        raise TextFallback(FallbackCause.FAILED, "no token id") from error


def read(body: bytes, kind: Any) -> Any:  # noqa: ANN401 (the type is the caller's)
    """Decode a response. Raises `TextFallback` if it does not fit `kind`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TextFallback(FallbackCause.FAILED, "not the response of a render endpoint") from error
