"""The lengths of prefixes that servers have counted, by the hash of their last block.

Compiled: `known_prefix_lengths.pyx`.
"""

from collections.abc import Sequence

from epp.model.prompts.hashing import BlockHash

_LONGEST = 1 << 62


class KnownPrefixLengths:
    """Lengths in tokens: the ones used or recorded last, at least `room`, at most twice as many.

    They are kept in two generations: entries that are used move to the young one; when that has
    `room` entries, it replaces the old one. With each length is its upper bound, 0 if the length
    was counted and is exact.
    """

    __slots__ = ("_old", "_room", "_young")

    def __init__(self, room: int) -> None:
        if room < 1:
            raise ValueError("there must be room for a length")
        self._room = room
        self._young: dict[BlockHash, tuple[int, int]] = {}
        self._old: dict[BlockHash, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._young) + sum(1 for each in self._old if each not in self._young)

    def record(self, block_hash: BlockHash, tokens: int) -> None:
        """Record the tokens from the start of a prompt to the end of a block, as counted."""
        self._record(block_hash, _checked(tokens), 0)

    def record_at_most(self, block_hash: BlockHash, tokens: int) -> None:
        """Record an uncounted length: maybe too great, or too small if some was evicted.

        It replaces an uncounted one, but never exceeds the first of these; a counted one stays.
        """
        seen = _checked(tokens)
        known, most = self._known(block_hash) or (seen, seen)
        self._record(block_hash, min(seen, most) if most else known, most)

    def most(self, block_hash: BlockHash) -> int:
        """Return a block's length if it was counted, else its upper bound; -1 if unknown."""
        return max(self._known(block_hash) or (-1, -1))

    def _known(self, block_hash: BlockHash) -> tuple[int, int] | None:
        return self._young.get(block_hash) or self._old.get(block_hash)

    def _record(self, block_hash: BlockHash, tokens: int, most: int) -> None:
        if block_hash not in self._young and len(self._young) >= self._room:
            self._old, self._young = self._young, {}
        self._young[block_hash] = tokens, most

    def among(self, hashes: Sequence[BlockHash]) -> list[tuple[int, int]]:
        """Return the positions of blocks of known length, with their tokens, which never fall.

        Of two that contradict each other the later is right: its prompt was the longer one.
        """
        found: list[tuple[int, int]] = []
        for position, block_hash in enumerate(hashes):
            known = self._known(block_hash)
            if known is None:
                continue
            while found and found[-1][1] > known[0]:
                found.pop()
            found.append((position, known[0]))
            if block_hash not in self._young:
                self._record(block_hash, *known)
        return found


def _checked(tokens: int) -> int:
    if not 0 <= tokens < _LONGEST:
        raise OverflowError("a length must be in 0..2^62")
    return tokens
