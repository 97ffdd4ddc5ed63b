"""Hashes that sequences of them are looked through for."""

from collections.abc import Sequence

from epp.model.prompts.hashing import BlockHash

_LARGEST = (1 << 64) - 1


class HashSet:
    """A set of block hashes, of 64 bits each.

    Raises `OverflowError` for what is none, `TypeError` for what is no integer.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: set[BlockHash] = set()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, block_hash: BlockHash) -> None:
        """Take one in; that it is there already changes nothing."""
        if not isinstance(block_hash, int):
            raise TypeError("a block hash is an integer")
        if not 0 <= block_hash <= _LARGEST:
            raise OverflowError("a block hash has 64 bits")
        self._held.add(block_hash)

    def discard(self, block_hash: BlockHash) -> None:
        """Take one out; that it is not there changes nothing."""
        self._held.discard(block_hash)

    def meets(self, hashes: Sequence[BlockHash]) -> bool:
        """Whether any of them is in it."""
        return not self._held.isdisjoint(hashes)
