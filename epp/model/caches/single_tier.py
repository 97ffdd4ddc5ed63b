"""The common part of models with one tier: its blocks, and their changes."""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate, filterfalse

from epp.model.caches.content_changes import ContentChanges
from epp.model.caches.contract import Key
from epp.model.prompts.hashing import BlockHash


class SingleTierCache:
    """The part of a `CacheModel` that does not depend on the order of eviction.

    `keys` has the key of every held block: its hash, or a negative number for a block without a
    hash, which cannot be found. Subclasses add and remove keys, and record that in `changes`.
    """

    def __init__(self, keys: Collection[Key], changes: ContentChanges) -> None:
        self._keys = keys
        self._changes = changes

    @property
    def offload_tier(self) -> None:
        """None: all is in one tier."""

    def hashes(self) -> Sequence[BlockHash]:
        """Return all blocks that can be found."""
        return [BlockHash(key) for key in self._keys if key >= 0]

    def match(self, hashes: Sequence[BlockHash]) -> int:
        """Return how many leading blocks are held; touches none."""
        missing = next(filterfalse(self._keys.__contains__, hashes), None)
        return len(hashes) if missing is None else hashes.index(missing)

    def contents(self) -> tuple[Sequence[BlockHash], Sequence[int]]:
        """Return nothing: when a block is evicted is not known by its place alone."""
        return (), ()

    def restore(self, hashes: Sequence[BlockHash], sizes: Sequence[int], *, closed: bool) -> None:
        """Hold nothing: no model of this kind gives anything (`contents`)."""

    @property
    def changed(self) -> bool:
        """Whether any block came or went."""
        return bool(self._changes)

    def take_stored(self) -> Sequence[BlockHash]:
        """Return the blocks that can be found and could not at the last call."""
        return self._changes.take_stored()

    def take_evicted(self) -> Sequence[BlockHash]:
        """Return the blocks that could be found at the last call and cannot any more."""
        return self._changes.take_evicted()


def count_fitting(sizes: Sequence[int], space: int) -> int:
    """Return how many of the first blocks, of `sizes` tokens, fit together into a space."""
    return bisect_right(list(accumulate(sizes)), space)
