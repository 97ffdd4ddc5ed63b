"""A set of block hashes that whole prompts are held against.

Compiled: `block_hashes.pyx`.
"""

from collections.abc import Sequence

from epp.model.prompts.hashing import BlockHash


class BlockHashes:
    """Hashes of blocks, each once."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: set[BlockHash] = set()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, block_hash: BlockHash) -> None:
        """Add one; one that is there changes nothing."""
        self._held.add(block_hash)

    def discard(self, block_hash: BlockHash) -> None:
        """Remove one; one that is not there changes nothing."""
        self._held.discard(block_hash)

    def has_any(self, hashes: Sequence[BlockHash]) -> bool:
        """Return whether any block of a prompt is in the set."""
        return not self._held.isdisjoint(hashes)
