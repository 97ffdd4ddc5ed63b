"""The lease that a cache gives a request on its blocks."""

from typing import TypeVar

Key = int
"""A block's key within one cache: its hash, or a negative number if it has none."""


class Lease:
    """The space that one request holds; each kind of cache adds its own fields.

    The prefix cache hit `cached` blocks. Its blocks hold `tokens` tokens together;
    `reserved_tokens` are tokens of space allocated beside them, without content.
    """

    __slots__ = ("cached", "reserved_tokens", "tokens")

    def __init__(self, cached: int, tokens: int, reserved: int) -> None:
        self.cached = cached
        self.tokens = tokens
        self.reserved_tokens = reserved


Kind = TypeVar("Kind", bound=Lease)


def own(kind: type[Kind], lease: Lease) -> Kind:
    """Return `lease` as a `kind`. Raises `TypeError` if another kind of cache gave it."""
    if not isinstance(lease, kind):
        raise TypeError("a lease of another kind of cache")
    return lease
