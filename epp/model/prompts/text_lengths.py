"""The lengths of a text's blocks in tokens, interpolated between known ones.

Compiled: `text_lengths.pyx`. Ends of blocks are ascending offsets from the start of a prompt, in
bytes or tokens.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

_SAMPLE = 1024
_WORDS = bytes(range(ord("a"), ord("z") + 1)) + bytes(range(ord("A"), ord("Z") + 1)) + b" "
_ASCII = bytes(range(128))

Kind = Literal["prose", "code", "script", "media"]
"""The kind of a text, as far as it affects tokens: words and spaces; much other ASCII (code,
tables, JSON); much beyond ASCII, plain or escaped; and text with images, videos or sounds, whose
tokens must not count for other text."""

DEFAULT_RATES: Mapping[Kind, float] = {"prose": 4.0, "code": 3.2, "script": 2.4, "media": 4.0}
"""Bytes per token until some are reported: about those of common tokenizers."""


def kind_of(text: bytes, start: int = 0, end: int | None = None) -> Kind:
    """Return the kind of a text, or of a part of one, by a sample of its middle."""
    end = len(text) if end is None else min(max(end, 0), len(text))
    start = min(max(start, 0), end)
    start += max(0, end - start - _SAMPLE) // 2
    sample = text[start : min(end, start + _SAMPLE)]
    if 5 * len(sample.translate(None, _WORDS)) <= len(sample):
        return "prose"
    beyond_ascii = len(sample.translate(None, _ASCII)) + 6 * sample.count(b"\\u")
    return "script" if 5 * beyond_ascii > len(sample) else "code"


def spread(ends: Sequence[int], pins: list[tuple[int, int]], rate: float) -> Sequence[int]:
    """Return the tokens up to each of `ends` (bytes), given those up to some of them.

    A pin is the position of a block and the tokens up to its end. Between pins tokens are spread
    evenly; after the last there are `rate` bytes a token. Raises `ValueError` for pins that are
    not in order, fall, or lie at blocks of no bytes.
    """
    tokens: list[int] = []
    before = known = 0
    for position, pin in pins:
        stretch = ends[len(tokens) : position + 1]
        if not len(tokens) <= position < len(ends) or pin < known or stretch[-1] <= before:
            raise ValueError("pins must rise, and lie at ends of blocks")
        slope = (pin - known) / (stretch[-1] - before)
        tokens += [known + int((end - before) * slope) for end in stretch[:-1]]
        tokens.append(pin)
        before, known = stretch[-1], pin
    return tokens + [known + int((end - before) / rate) for end in ends[len(tokens) :]]


def sizes_between(ends: Sequence[int]) -> Sequence[int]:
    """Return the length of each block. Raises `ValueError` if an end is before the last one."""
    sizes = [end - start for start, end in pairwise((0, *ends))]
    if sizes and min(sizes) < 0:
        raise ValueError("ends of blocks must rise")
    return sizes


def scaled(ends: Sequence[int], total: int, estimated: int) -> Sequence[int]:
    """Return ends scaled from `estimated` to `total` tokens."""
    return [end * total // estimated for end in ends]
