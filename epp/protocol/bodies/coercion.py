"""Reads a field's JSON like model servers, which use pydantic in lax mode.

A value that cannot be read counts as absent, except the model's name; the server refuses the
request if it needs the field. pydantic, "Conversion Table"; vLLM 0.32 `entrypoints/openai`.
"""

from typing import Final

import msgspec

from epp.errors import MalformedRequest
from epp.model.request import Api

LONGEST_MODEL: Final = 1024
"""The longest name of a model, in characters: the picker keeps state under these names."""
LONGEST_VALUE: Final = 16 << 10
"""The longest value that is read, in bytes; the longest name, fully escaped, is shorter."""
MAX_TOKENS: Final = 1 << 24
"""No prompt and no answer is longer: the longest contexts of models are 10 million tokens."""

MAX_ANSWERS: Final = 128
"""The most answers to one prompt that count (OpenAI API reference, `n`)."""

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors of decoding."""
_LONGEST_NUMBER: Final = 4096
"""The longest number that is read, in bytes; Python and pydantic allow 4,300 digits."""
_FLAGS: Final = {b"true": True, b"false": False, b"null": False}
_NO_VALUE: Final = frozenset((b"", b"null"))
_NO_SALT: Final = frozenset((b"", b'""', b"null"))
_TRUE: Final = frozenset(("1", "on", "t", "true", "y", "yes"))
_text: Final = msgspec.json.Decoder(str).decode
_flag: Final = msgspec.json.Decoder(float | str).decode
_whole: Final = msgspec.json.Decoder(int, strict=False).decode
"""Takes fractions that are whole, and texts of numbers, as pydantic does."""


def model_of(raw: bytes) -> str:
    """Return a model's name, empty without one. Raises `MalformedRequest` if it is not a name."""
    if raw[:1] == b'"':
        if len(raw) <= LONGEST_VALUE and len(name := _text(raw)) <= LONGEST_MODEL:
            return name
        raise MalformedRequest(f"`model` has more than {LONGEST_MODEL} characters")
    if raw and raw != b"null":
        raise MalformedRequest("`model` must be a string")
    return ""


def text_of(raw: bytes) -> str:
    """Return a text; an empty one for anything else, and for a longer one than is read."""
    if raw[:1] == b'"' and len(raw) <= LONGEST_VALUE:
        try:
            return _text(raw)
        except UNREADABLE:
            pass
    return ""


def salt_of(raw: bytes) -> str:
    """Return the salt of a cache: a text as it is, null as none, anything else as written."""
    if raw in _NO_SALT:
        return ""
    return text_of(raw) or raw.decode(errors="replace")


def flag_of(raw: bytes) -> bool:
    """Return whether a flag is set."""
    found = _FLAGS.get(raw)
    if found is None and len(raw) <= _LONGEST_NUMBER:
        try:
            value = _flag(raw)
        except UNREADABLE:
            return False
        return value.lower() in _TRUE if isinstance(value, str) else value == 1
    return bool(found)


def limit_of(*raws: bytes) -> int | None:
    """Return the first of some limits of tokens, from 1 to `MAX_TOKENS`; None without one.

    A limit below 1 does not count (llama.cpp, Ollama), and a larger one is the largest.
    """
    for raw in raws:
        if raw and (tokens := _whole_of(raw)) >= 1:
            return min(tokens, MAX_TOKENS)
    return None


def n_of(*raws: bytes) -> int:
    """Return the first of some numbers of answers to a prompt, from 1 to `MAX_ANSWERS`; else 1."""
    return min(limit_of(*raws) or 1, MAX_ANSWERS)


def skips_reading(  # noqa: PLR0913, PLR0917 (as the body has them)
    api: Api, prompt_logprobs: bytes, echo: bytes, logprobs: bytes, sampled: bytes, skip: bytes
) -> bool:
    """Return whether an engine computes all of a prompt, even cached parts.

    vLLM 0.32 `SamplingParams`: if the tokens of the prompt get log probabilities too, or
    `sampling_params` demand it (`sampled` and `skip` are in these). In a chat `logprobs` are
    `top_logprobs`, which are 0 by default.
    """
    if skip not in _NO_VALUE:
        return flag_of(skip)
    if api is Api.CHAT:
        logprobs = logprobs or b"0"
    echoed = logprobs not in _NO_VALUE and flag_of(echo)
    return echoed or prompt_logprobs not in _NO_VALUE or sampled not in _NO_VALUE


def _whole_of(raw: bytes) -> int:
    """Return a whole number; 0 for anything else."""
    if len(raw) <= _LONGEST_NUMBER:
        try:
            return _whole(raw)
        except UNREADABLE:
            pass
    return int(raw == b"true")
