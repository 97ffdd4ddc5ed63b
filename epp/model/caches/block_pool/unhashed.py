"""The leases that have unhashed blocks, by the hashed block that these follow.

vLLM hashes a generated block when it is full, and reports it in a KV event with its parent; the
parent leads to the lease.
"""

from collections.abc import Container, Sequence
from itertools import islice

from epp.model.caches.lease import Key, Lease
from epp.model.prompts.hashing import BlockHash

_MOST = 1 << 10
"""Leases that can be found: the engine reports a block within a step or so."""
_AT_ONCE = 1 << 8
"""Leases that are removed at once where there are too many: those added first."""


class UnhashedBlocks:
    """Leases by the block after which their unhashed ones come; `_MOST` of them at most."""

    def __init__(self) -> None:
        self._after: dict[BlockHash, list[Lease]] = {}
        self._anchors: dict[Lease, BlockHash] = {}

    def add(self, lease: Lease, anchor: BlockHash) -> None:
        """Add a lease whose unhashed blocks come after `anchor`."""
        if len(self._anchors) >= _MOST:
            for oldest in list(islice(self._anchors, _AT_ONCE)):
                self.remove(oldest)
        self._anchors[lease] = anchor
        self._after.setdefault(anchor, []).append(lease)

    def remove(self, lease: Lease) -> None:
        """Remove a lease, if it was added: it has no unhashed blocks, or none will get a hash."""
        anchor = self._anchors.pop(lease, None)
        if anchor is None:
            return
        same_anchor = self._after[anchor]
        same_anchor.remove(lease)
        if not same_anchor:
            del self._after[anchor]

    def after(self, anchor: BlockHash | None, held: Container[Key]) -> Lease | None:
        """Return a lease, the first of several, with unhashed blocks after `anchor`."""
        if anchor is None:
            return None
        for lease in tuple(self._after.get(anchor, ())):
            if self.of(lease, held):
                return lease
            self.remove(lease)
        return None

    @staticmethod
    def of(lease: Lease, held: Container[Key]) -> Sequence[Key]:
        """Return the unhashed blocks of a lease that are still held: the first ones there were."""
        if not lease.release_seq:
            return lease.unhashed_keys
        first = lease.evictable
        while first and lease.keys[first - 1] < 0:
            first -= 1
        return [key for key in lease.keys[first : lease.evictable] if key in held]
