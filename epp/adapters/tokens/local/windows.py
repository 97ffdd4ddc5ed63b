"""Encodes a long text a window at a time: memory for each of its bytes is needed for one window.

The library takes some 150 bytes for each byte of a text while it encodes it, and holds the GIL
while it hands over all ids. Windows overlap, and where both encode the overlap alike the second
one takes over: tokens depend on what is near them, so that they are those of the whole text.
"""

from collections.abc import Callable, Iterator
from typing import Final

from tokenizers import Encoding

from epp.adapters.tokens.fallback import FallbackCause, TextFallback
from epp.protocol.bodies.token_prompts import packed

WINDOW: Final = 32 << 10
"""Characters that are encoded at once."""
_OVERLAP: Final = 2 << 10
"""Characters of two windows in common."""
_MARGIN: Final = _OVERLAP // 4
"""Characters at the ends of an overlap whose tokens may depend on what one window does not have."""
_AGREEING: Final = 16
"""Tokens in a row that have to be the same in both."""


def encode_in_windows(encode: Callable[[str], Encoding], text: str) -> bytes:
    """Return the ids of a text of more than `WINDOW` characters, packed.

    Raises `TextFallback` if there is no place at which two windows agree.
    """
    parts = []
    window, begins, first = encode(text[:WINDOW]), 0, 0
    while begins + WINDOW < len(text):
        start = begins + _start_of_next(window)
        following = encode(text[start : start + WINDOW])
        last, next_first = _meeting(window, following, start - begins)
        parts.append(packed(window.ids[first:last]))
        window, begins, first = following, start, next_first
    parts.append(packed(window.ids[first:]))
    return b"".join(parts)


def _start_of_next(window: Encoding) -> int:
    """Return the character of a window at which the next one starts: where a token begins.

    A run of the same character, or of digits in threes, is encoded alike from there on.
    """
    for char, _ in _tokens(window, WINDOW - _OVERLAP, WINDOW - 2 * _MARGIN):
        return char
    raise _no_place()


def _meeting(window: Encoding, following: Encoding, apart: int) -> tuple[int, int]:
    """Return the token of each at which the first one may end and the second one begin.

    `apart`: how many characters after the first one the second one begins.
    """
    places = dict(_tokens(window, apart + _MARGIN, WINDOW - _MARGIN))
    ids, following_ids = window.ids, following.ids
    for char, token in _tokens(following, _MARGIN, WINDOW - _MARGIN - apart):
        before = places.get(char + apart)
        if before is not None:
            ahead = following_ids[token : token + _AGREEING]
            if ahead == ids[before : before + _AGREEING]:
                return before, token
    raise _no_place()


def _tokens(window: Encoding, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield characters from `first` to before `end` at which a token begins, and that token.

    If several tokens have one character, the first counts.
    """
    token, before = _token_of(window, first, end), -1
    while token is not None and token < len(window):
        chars = window.token_to_chars(token)
        if chars is not None:
            if chars[0] >= end:
                return
            if first <= chars[0] != before:
                yield chars[0], token
            before = chars[0]
        token += 1


def _token_of(window: Encoding, first: int, end: int) -> int | None:
    """Return the token of the first character that has one; None if there is none."""
    found = (window.char_to_token(char) for char in range(first, end))
    return next((token for token in found if token is not None), None)


def _no_place() -> TextFallback:
    return TextFallback(FallbackCause.LARGE, f"tokens of {_OVERLAP} characters depend on all")
