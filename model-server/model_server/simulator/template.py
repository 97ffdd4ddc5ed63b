"""The chat template: role marker, content, end marker. Knows no HTTP.

What the model generates after the last role marker is what the next turn's assistant message
tokenizes to, so a conversation's earlier turns are a token prefix of its later ones.
"""

from array import array
from collections.abc import Iterable
from typing import NamedTuple

from model_server.simulator.tokenizer import Tokenizer, special

END = special("end")


class Turn(NamedTuple):
    """One message: a role and its text."""

    role: str
    text: str


def render(tokenizer: Tokenizer, turns: Iterable[Turn], *, generate: bool) -> "array[int]":
    """Token ids of a conversation; `generate` opens an assistant turn at the end."""
    ids: array[int] = array("I")
    for turn in turns:
        ids.append(special(turn.role))
        ids.extend(tokenizer.encode(turn.text))
        ids.append(END)
    if generate:
        ids.append(special("assistant"))
    return ids
