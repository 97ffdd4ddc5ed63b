"""What a request holds in a block pool, and what is left of it once it was given back."""

from collections.abc import Sequence

Key = int
"""A block's name within one pool (`epp.model.blockpool`)."""


class Lease:
    """What one request holds.

    Its blocks in order (`keys`, of `tokens` in all), the first `cached` of which it found, and
    `blank` tokens of blocks without a hash.
    """

    __slots__ = ("blank", "cached", "keys", "tokens")

    def __init__(self, keys: Sequence[Key], cached: int, tokens: int, blank: int) -> None:
        self.keys = keys
        self.cached = cached
        self.tokens = tokens
        self.blank = blank


class Release:
    """What one lease gave back; `left` counts the keys whose turn to be evicted has not come."""

    __slots__ = ("keys", "left", "stamp")

    def __init__(self, keys: Sequence[Key], stamp: int) -> None:
        self.keys = keys
        self.left = len(keys)
        self.stamp = stamp
