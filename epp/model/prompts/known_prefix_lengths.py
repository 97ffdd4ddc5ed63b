"""The lengths of prefixes that servers have counted, by the hash of their last block.

Compiled: `known_prefix_lengths.pyx`.
"""

from collections.abc import Sequence

from epp.model.prompts.hashing import BlockHash

_LONGEST = 1 << 62


class KnownPrefixLengths:
    """Lengths in tokens: the ones used or recorded last, at least `room`, at most twice as many.

    They are kept in two generations: what is used moves to the young one; when that has `room`
    entries, the old one is dropped and the young one takes its place.
    """

    __slots__ = ("_old", "_room", "_young")

    def __init__(self, room: int) -> None:
        if room < 1:
            raise ValueError("there must be room for a pin")
        self._room = room
        self._young: dict[BlockHash, int] = {}
        self._old: dict[BlockHash, int] = {}

    def __len__(self) -> int:
        return len(self._young) + sum(1 for each in self._old if each not in self._young)

    def record(self, block_hash: BlockHash, tokens: int) -> None:
        """Record the tokens from the start of a prompt to the end of a block."""
        if not 0 <= tokens < _LONGEST:
            raise OverflowError("a length must be in 0..2^62")
        if block_hash not in self._young and len(self._young) >= self._room:
            self._old, self._young = self._young, {}
        self._young[block_hash] = tokens

    def record_at_most(self, block_hash: BlockHash, tokens: int) -> None:
        """Record a length that may be too great: it only ever lowers a recorded one."""
        known = self._young.get(block_hash, self._old.get(block_hash, tokens))
        self.record(block_hash, min(tokens, known))

    def among(self, hashes: Sequence[BlockHash]) -> list[tuple[int, int]]:
        """Return the positions of blocks of known length, with their tokens, which never fall."""
        young, old, longest = self._young, self._old, 0
        found = []
        for position, block_hash in enumerate(hashes):
            tokens = young.get(block_hash, old.get(block_hash, -1))
            if tokens >= longest:
                longest = tokens
                found.append((position, tokens))
                if block_hash not in young:
                    self.record(block_hash, tokens)
                    young, old = self._young, self._old
        return found
