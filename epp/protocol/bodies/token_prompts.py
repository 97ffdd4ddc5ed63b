"""The media and limits in bodies of the generate APIs of vLLM and SGLang."""

import sys
from array import array
from collections.abc import Iterable
from contextlib import suppress
from operator import itemgetter

import msgspec
import xxhash

from epp.model.request import TOKEN_BYTES, Prompt
from epp.protocol.bodies.api_bodies import ABSENT
from epp.protocol.bodies.coercion import UNREADABLE

MAX_MEDIA = 256
"""Media of a prompt that are looked at, the first ones."""
LONGEST_FEATURE = 128 << 10
"""Bytes that are read of the media's hashes, and of their places; with more a prompt has none."""

Medium = tuple[int, int, str]
"""The start and the number of the tokens that stand for a medium, and its hash."""


class Sampling(msgspec.Struct):
    """`max_new_tokens` is SGLang's, which has `n` as well; all others are vLLM's."""

    max_tokens: msgspec.Raw = ABSENT
    max_new_tokens: msgspec.Raw = ABSENT
    n: msgspec.Raw = ABSENT
    prompt_logprobs: msgspec.Raw = ABSENT
    skip_reading_prefix_cache: msgspec.Raw = ABSENT


class Features(msgspec.Struct):
    """The media of a prompt in tokens, by modality: their hashes and positions."""

    mm_hashes: msgspec.Raw = ABSENT
    mm_placeholders: msgspec.Raw = ABSENT


class _Placeholder(msgspec.Struct):
    offset: int
    length: int


_hashes = msgspec.json.Decoder(dict[str, list[str]])
_placeholders = msgspec.json.Decoder(dict[str, list[_Placeholder]])


def medium_ids(name: str, count: int) -> bytes:
    """Return the token ids that stand for a medium in a prompt, packed, given its hash."""
    digest = xxhash.xxh3_128_digest(name.encode(errors="replace"))
    size = count * TOKEN_BYTES
    return (digest * (size // len(digest) + 1))[:size]


def packed(ids: Iterable[int]) -> bytes:
    """Return token ids as the bytes of an exact prompt. Raises `OverflowError` for none."""
    numbers = array("I", ids)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def with_hashes(ids: bytes, media: Iterable[Medium], most: int | None = None) -> bytes:
    """Put the hashes of the first `most` media in the place of the tokens that stand for them.

    Those tokens are the same for all media; an engine's blocks differ where their hashes do. All
    ids are packed. Raises `ValueError` for media that overlap, are empty or lie outside the prompt.
    """
    data, tokens, end = bytearray(ids), len(ids) // TOKEN_BYTES, 0
    for start, count, name in sorted(media, key=itemgetter(0))[:most]:
        if start < end or count < 1 or start + count > tokens:
            raise ValueError("a placeholder overlaps another, or lies outside the prompt")
        end = start + count
        data[start * TOKEN_BYTES : end * TOKEN_BYTES] = medium_ids(name, count)
    return bytes(data)


def with_media(prompts: tuple[Prompt, ...], hashes: bytes, places: bytes) -> tuple[Prompt, ...]:
    """Return prompts with the media of vLLM's features (JSON); what does not fit is ignored."""
    if not places or len(prompts) != 1 or not prompts[0].exact:
        return prompts
    if max(len(hashes), len(places)) > LONGEST_FEATURE:
        return prompts
    with suppress(*UNREADABLE, ValueError, KeyError):
        names = _hashes.decode(hashes)
        media = [
            (place.offset, place.length, name)
            for modality, found in _placeholders.decode(places).items()
            for name, place in zip(names[modality], found, strict=True)
        ]
        if media:
            data = with_hashes(prompts[0].data, media, MAX_MEDIA)
            return (Prompt(data, exact=True, multimodal=True),)
    return prompts
