"""Which endpoints hold which block; for a chain, the longest held prefix per endpoint.

One map serves the fleet: from a block hash to the set of endpoints that hold it, as bits of an
integer. A prefix counts only as far as it is unbroken: an endpoint that lost a block in the
middle is credited with what stands before it.
"""

from collections.abc import Sequence
from itertools import accumulate, repeat, takewhile
from operator import and_
from typing import NewType

from epp.model.blocks import BlockHash

Slot = NewType("Slot", int)
"""An endpoint's bit; given back when the endpoint goes."""


class PrefixIndex:
    """Bits of endpoints by block hash."""

    def __init__(self) -> None:
        self._holders: dict[BlockHash, int] = {}
        self._used = 0

    def __len__(self) -> int:
        return len(self._holders)

    def open(self) -> Slot:
        """Give out the lowest free slot."""
        free = ~self._used
        slot = Slot((free & -free).bit_length() - 1)
        self._used |= 1 << slot
        return slot

    def close(self, slot: Slot, held: Sequence[BlockHash]) -> None:
        """Take a slot back, with all that its endpoint held."""
        self.remove(slot, held)
        self._used &= ~(1 << slot)

    def add(self, slot: Slot, hashes: Sequence[BlockHash]) -> None:
        """Note that an endpoint holds blocks."""
        holders, bit = self._holders, 1 << slot
        if holders.keys().isdisjoint(hashes):
            holders.update(dict.fromkeys(hashes, bit))
            return
        for block_hash in hashes:
            holders[block_hash] = holders.get(block_hash, 0) | bit

    def remove(self, slot: Slot, hashes: Sequence[BlockHash]) -> None:
        """Note that an endpoint holds blocks no longer; unknown ones are ignored."""
        holders, bit = self._holders, 1 << slot
        for block_hash in hashes:
            held = holders.get(block_hash, 0)
            if held == bit:
                del holders[block_hash]
            elif held & bit:
                holders[block_hash] = held & ~bit

    def match(self, hashes: Sequence[BlockHash]) -> list[int]:
        """Return, by slot, how many leading blocks each endpoint holds without a hole."""
        depths = [0] * self._used.bit_length()
        held = map(self._holders.get, hashes, repeat(0))
        # Who holds everything up to each block: every set is part of the one before it.
        unbroken = list(takewhile(bool, accumulate(held, and_, initial=self._used)))
        depth = 0
        while depth < len(unbroken):
            holders = unbroken[depth]
            depth += unbroken.count(holders)
            after = unbroken[depth] if depth < len(unbroken) else 0
            _spread(depths, holders & ~after, depth - 1)
        return depths


def _spread(depths: list[int], slots: int, depth: int) -> None:
    while slots:
        lowest = slots & -slots
        depths[lowest.bit_length() - 1] = depth
        slots ^= lowest
