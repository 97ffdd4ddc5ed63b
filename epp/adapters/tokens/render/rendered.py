"""Responses of vLLM's render endpoints, converted to prompts.

Their fields are those of vLLM 0.32 `GenerateRequest` and `TokenizeResponse`. All tokens of an
image, a sound or a video are one placeholder; vLLM tells media apart by their hash, an extra key
of each block that one overlaps. Here the placeholders are replaced by numbers made of that hash,
so that equal media at the same offset are equal tokens and other media are not.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from epp.adapters.tokens.fallback import FallbackCause, TextFallback
from epp.model.request import Prompt
from epp.protocol.bodies.coercion import UNREADABLE
from epp.protocol.bodies.token_prompts import Medium, packed, with_hashes

_Length = Annotated[int, msgspec.Meta(ge=0)]


class _Range(msgspec.Struct):
    offset: int
    length: _Length


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
    """Return the prompt. Raises `TextFallback` for media without a hash, or that do not fit."""
    prompt, features = exact(rendered.token_ids), rendered.features or _Features()
    media: list[Medium] = []
    for modality, ranges in features.mm_placeholders.items():
        hashes = features.mm_hashes.get(modality, [])
        if len(hashes) != len(ranges) or None in hashes:
            raise TextFallback(FallbackCause.MEDIA, "the endpoint names no hash")
        pairs = zip(ranges, hashes, strict=True)
        media += [(place.offset, place.length, str(name)) for place, name in pairs]
    try:
        return Prompt(with_hashes(prompt.data, media), exact=True, multimodal=bool(media))
    except ValueError as error:
        raise TextFallback(FallbackCause.FAILED, str(error)) from error


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
    except UNREADABLE as error:
        raise TextFallback(FallbackCause.FAILED, "not the response of a render endpoint") from error
