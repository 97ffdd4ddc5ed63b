"""Text as runs of tokens, without a tokenizer: 64 characters of a message are 16 equal tokens.

Texts are cut at the same characters, so equal text gives equal tokens. A tokenizer makes about one
token of four characters of English; if a trace counts tokens, its own ratio is used.
"""

from collections.abc import Sequence
from functools import lru_cache

from epp.replay.traffic.calls import Run, Runs, TokenNames, cut, joined, tokens_in

CHUNK = 64
"""Characters."""
GROUP = 16
ROLE_TOKENS = 4
"""Tokens that a chat template writes before a message."""


class Texts:
    """Gives every chunk of text an id; `per_character` is the number of tokens in a character."""

    def __init__(self, per_character: float = 0.25) -> None:
        self._ids = TokenNames()
        self._per_character = per_character
        self._chunks = lru_cache(maxsize=1 << 14)(self._cut)

    def message(self, text: str, role: str = "") -> Runs:
        """Return a message's tokens, preceded by those of its role; nothing for an empty one."""
        header = (Run(self._ids(("role", role)), ROLE_TOKENS),) if role else ()
        return (*header, *self._chunks(text))

    def tokens(self, tokens: Sequence[int]) -> Runs:
        """Return a tokenizer's tokens, each 16 of them as one run."""
        groups = (tuple(tokens[at : at + GROUP]) for at in range(0, len(tokens), GROUP))
        return joined(tuple(Run(self._ids(group), len(group)) for group in groups))

    def response(self, text: str, tokens: int | None, number: int) -> Runs:
        """Return the tokens of a response, as many as were counted.

        Tokens beyond its text, such as a chain of thought, are equal to no other response's. A
        response about which nothing is known has one token.
        """
        runs = self._chunks(text)
        missing = max(1, tokens or 0) - tokens_in(runs)
        if missing > 0 and (tokens is not None or not runs):
            return joined(runs, (Run(self._ids(("response", number)), missing),))
        return runs if tokens is None else cut(runs, 0, max(1, tokens))

    def _cut(self, text: str) -> Runs:
        chunks = [text[start : start + CHUNK] for start in range(0, len(text), CHUNK)]
        runs = (Run(self._ids(("text", chunk)), self._tokens(len(chunk))) for chunk in chunks)
        return tuple(joined(tuple(runs)))

    def _tokens(self, characters: int) -> int:
        return max(1, round(characters * self._per_character))
