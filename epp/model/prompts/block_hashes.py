"""Counted hashes of blocks; whole prompts are compared with them.

Compiled: `block_hashes.pyx`.
"""

from collections.abc import Iterator, Sequence

from epp.model.prompts.hashing import BlockHash


class BlockHashes:
    """Hashes of blocks, each as often as it was added."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[BlockHash, int] = {}

    def __len__(self) -> int:
        """Return how many different ones there are."""
        return len(self._counts)

    def __iter__(self) -> Iterator[BlockHash]:
        """Go through the different ones, which must not change meanwhile."""
        return iter(self._counts)

    def add(self, hashes: Sequence[BlockHash]) -> None:
        """Add each once more."""
        for each in hashes:
            self._counts[each] = self._counts.get(each, 0) + 1

    def remove(self, hashes: Sequence[BlockHash]) -> Sequence[BlockHash]:
        """Remove each once; return those that are there no more. What is not there stays so."""
        gone = []
        for each in hashes:
            left = self._counts.get(each, 0) - 1
            if left > 0:
                self._counts[each] = left
            elif left == 0:
                del self._counts[each]
                gone.append(each)
        return gone

    def missing(self, hashes: Sequence[BlockHash]) -> Sequence[BlockHash]:
        """Return those blocks of a prompt that are not there, in their order."""
        return [each for each in hashes if each not in self._counts]

    def last(self, hashes: Sequence[BlockHash]) -> int:
        """Return how many blocks a prompt has up to the last one that is there, 0 if none is."""
        for blocks in range(len(hashes), 0, -1):
            if hashes[blocks - 1] in self._counts:
                return blocks
        return 0
