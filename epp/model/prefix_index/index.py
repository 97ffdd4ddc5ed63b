"""The index of blocks over all endpoints: for a chain, the longest held prefix per endpoint.

One map serves the fleet: from a block hash to the set of endpoints that hold it, as bits of an
integer. A prefix counts only as far as it is unbroken: an endpoint that lost a block in the
middle is credited with the blocks before it.

For endpoints that hold every block together with its predecessors, the end of the held prefix is
found by jumps, for all of them at once. Other endpoints are followed block by block.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby, islice, repeat, takewhile
from operator import and_
from typing import NewType

from epp.model.prompts.hashing import BlockHash

Slot = NewType("Slot", int)
"""The number of an endpoint's bit; reused once the endpoint is removed."""

BUDGET = 2 << 30
"""Bytes that the index and the endpoints' pools may take together, about."""

HELD_BYTES = 240
"""Bytes of one block at one endpoint in its `BlockPool`: an object, an entry of a map with a list,
the hash itself (measured: `tests/model/test_prefix_index_budget.py`)."""
HASH_BYTES = 80
"""Bytes of one block here, however many hold it: an entry of the map, and the set."""

MAX_SLOTS = 1 << 16
"""Endpoints, at most."""

_PURGED_AT_LEAST = 1024
"""Blocks of removed endpoints that one step purges, at least: a tenth of a millisecond."""


class PrefixIndex:
    """Bits of endpoints by block hash. `budget` is in bytes, and counts the endpoints' pools.

    `held` counts every block at every endpoint. Hashes have 64 bits: larger integers raise
    `OverflowError`, other types `TypeError`. A slot that is not in use raises `ValueError`.
    """

    def __init__(self, budget: int = BUDGET) -> None:
        self._budget = budget
        self._holders: dict[BlockHash, int] = {}
        self.held = 0
        self._used = 0
        self._live = 0
        self._closed = 0
        self._leaving: deque[tuple[Slot, Iterator[BlockHash]]] = deque()

    def __len__(self) -> int:
        return len(self._holders)

    @property
    def used_bytes(self) -> int:
        """Estimated bytes of the index and the endpoints' pools."""
        return self.held * HELD_BYTES + len(self._holders) * HASH_BYTES

    @property
    def excess(self) -> int:
        """How many blocks at endpoints are more than the budget allows."""
        return max(0, -((self._budget - self.used_bytes) // HELD_BYTES))

    # Slots.

    def add_slot(self) -> Slot:
        """Add the lowest free slot, for an endpoint that is not closed (`mark`), and return it.

        Raises `OverflowError` if all of `MAX_SLOTS` are taken.
        """
        self.purge(_PURGED_AT_LEAST)
        free = ~self._used
        slot = Slot((free & -free).bit_length() - 1)
        if slot == MAX_SLOTS:
            raise OverflowError(f"an index has at most {MAX_SLOTS} slots")
        self._used |= 1 << slot
        self._live |= 1 << slot
        return slot

    def remove_slot(self, slot: Slot, held: Iterable[BlockHash]) -> None:
        """Remove a slot, with all blocks that its endpoint held.

        It is not found from here on. `held` is read step by step, here and later, and must not
        change meanwhile; the slot is reused when all is read.
        """
        bit, steps = self._in_use(slot), iter(held)
        self._live &= ~bit
        self._closed &= ~bit
        self._leaving.append((slot, steps))
        self.purge(_PURGED_AT_LEAST)

    def mark(self, slot: Slot, *, closed: bool) -> None:
        """Set whether an endpoint holds every block together with all its predecessors."""
        bit = self._in_use(slot)
        self._closed = self._closed | bit if closed else self._closed & ~bit

    def purge(self, blocks: int) -> None:
        """Remove up to `blocks` blocks of removed endpoints."""
        while blocks > 0 and self._leaving:
            slot, held = self._leaving[0]
            part = list(islice(held, blocks))
            self._remove(slot, part)
            if len(part) < blocks:
                self._leaving.popleft()
                self._used &= ~(1 << slot)
            blocks -= len(part)

    def _in_use(self, slot: Slot) -> int:
        """Return the bit of a slot that is given out."""
        if not 0 <= slot < MAX_SLOTS or not self._live >> slot & 1:
            raise ValueError(f"slot {slot} is not in use")
        return 1 << slot

    # Blocks.

    def add(self, slot: Slot, hashes: Sequence[BlockHash]) -> None:
        """Add blocks to an endpoint."""
        holders, bit = self._holders, self._in_use(slot)
        _check(hashes)
        if self._leaving:
            self.purge(2 * len(hashes) + _PURGED_AT_LEAST)
        if holders.keys().isdisjoint(hashes):
            before = len(holders)
            holders.update(dict.fromkeys(hashes, bit))
            self.held += len(holders) - before
            return
        for block_hash in hashes:
            held = holders.get(block_hash, 0)
            if not held & bit:
                holders[block_hash] = held | bit
                self.held += 1

    def remove(self, slot: Slot, hashes: Sequence[BlockHash]) -> None:
        """Remove blocks from an endpoint; unknown ones are ignored."""
        self._in_use(slot)
        self._remove(slot, hashes)

    def _remove(self, slot: Slot, hashes: Sequence[BlockHash]) -> None:
        _check(hashes)
        holders, bit = self._holders, 1 << slot
        for block_hash in hashes:
            held = holders.get(block_hash, 0)
            if held & bit:
                self.held -= 1
                if held == bit:
                    del holders[block_hash]
                else:
                    holders[block_hash] = held ^ bit

    # Look-up.

    def match(self, hashes: Sequence[BlockHash]) -> list[int]:
        """Return, by slot, how many leading blocks each endpoint holds without a hole."""
        depths = [0] * self._used.bit_length()
        if hashes:
            closed = self._live & self._closed
            if closed:
                self._jump(depths, hashes, closed)
            if closed != self._live:
                self._walk(depths, hashes, self._live ^ closed)
        return depths

    def _jump(self, depths: list[int], hashes: Sequence[BlockHash], slots: int) -> None:
        """Find where each of `slots` ends, by bisection, those together that go the same way."""
        get = self._holders.get
        low, high, slots = 1, len(hashes), slots & get(hashes[0], 0)
        others: list[tuple[int, int, int]] = []  # they end between two depths, both included
        while slots:
            while low < high:
                middle = (low + high + 1) >> 1
                deeper = get(hashes[middle - 1], 0) & slots
                if deeper:
                    if deeper != slots:
                        others.append((low, middle - 1, slots ^ deeper))
                        slots = deeper
                    low = middle
                else:
                    high = middle - 1
            _spread(depths, slots, low)
            low, high, slots = others.pop() if others else (0, 0, 0)

    def _walk(self, depths: list[int], hashes: Sequence[BlockHash], slots: int) -> None:
        """Follow the chain with `slots` until no slot holds it any more."""
        held = map(self._holders.get, hashes, repeat(0))
        # The endpoints that hold everything up to each block; each set is part of the one before.
        unbroken = takewhile(bool, accumulate(held, and_, initial=slots))
        depth = -1
        for still, run in groupby(unbroken):
            if still != slots:
                _spread(depths, slots ^ still, depth)
                slots = still
            depth += len(list(run))
        _spread(depths, slots, depth)


def _spread(depths: list[int], slots: int, depth: int) -> None:
    while slots:
        lowest = slots & -slots
        depths[lowest.bit_length() - 1] = depth
        slots ^= lowest


def _check(hashes: Sequence[BlockHash]) -> None:
    """Raise the extension's errors for values that cannot be hashes."""
    if not (isinstance(hashes, array) and hashes.typecode == "Q"):
        array("Q", [*hashes])
