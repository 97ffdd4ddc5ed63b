"""What the generate APIs of vLLM and SGLang have beside token ids: limits, salts, media."""

import sys
from array import array
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice

import msgspec
import xxhash

from epp.model.request import TOKEN_BYTES, Prompt

_LARGEST = (1 << 32) - 1
_MOST_MEDIA = 256
"""Media of one modality that are looked at."""


class _Sampling(msgspec.Struct):
    """`max_tokens` is vLLM's, `max_new_tokens` SGLang's."""

    max_tokens: int | None = None
    max_new_tokens: int | None = None


class _Placeholder(msgspec.Struct):
    offset: int
    length: int


class _Features(msgspec.Struct):
    """The media of a prompt in tokens, by modality: their hashes, and where they stand."""

    mm_hashes: dict[str, list[str | None]] = {}
    mm_placeholders: dict[str, list[_Placeholder]] = {}


_sampling = msgspec.json.Decoder(_Sampling)
_features = msgspec.json.Decoder(_Features)
_perhaps_text = msgspec.json.Decoder(str | None)


def medium_ids(name: str, count: int) -> list[int]:
    """Return the token ids that stand for a medium in a prompt, given its hash."""
    first = xxhash.xxh3_64_intdigest(name.encode())
    return [(first + at) & _LARGEST for at in range(count)]


def packed(ids: Iterable[int]) -> bytes:
    """Return token ids as the bytes of an exact prompt. Raises `OverflowError` for none."""
    numbers = array("I", ids)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def limit_of(sampling: bytes) -> int | None:
    """Return the limit of tokens in sampling parameters (JSON); None where they have none."""
    if sampling:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            found = _sampling.decode(sampling)
            return found.max_tokens or found.max_new_tokens
    return None


def salt_of(raw: bytes) -> str:
    """Return what separates caches (JSON): a text as it is, anything else as it is written."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return (raw and _perhaps_text.decode(raw)) or ""
    return raw.decode(errors="replace")


def with_media(prompts: tuple[Prompt, ...], features: bytes) -> tuple[Prompt, ...]:
    """Put the hashes of media in the place of the tokens that stand for them.

    Those tokens are the same for all media; an engine's blocks differ where their hashes do.
    `features` is vLLM's JSON; one that does not fit, or is empty, changes nothing.
    """
    if not features or len(prompts) != 1 or not prompts[0].exact:
        return prompts
    data, multimodal = bytearray(prompts[0].data), False
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        found = _features.decode(features)
        for modality, places in found.mm_placeholders.items():
            pairs = zip(found.mm_hashes.get(modality, ()), places, strict=False)
            for name, place in islice(pairs, _MOST_MEDIA):
                start, end = place.offset * TOKEN_BYTES, (place.offset + place.length) * TOKEN_BYTES
                if name is not None and 0 <= start < end <= len(data):
                    data[start:end] = packed(medium_ids(name, place.length))
                    multimodal = True
    return (Prompt(bytes(data), exact=True, multimodal=multimodal),)
