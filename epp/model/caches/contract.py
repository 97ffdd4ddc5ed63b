"""What a model of one endpoint's prefix cache must be able to do, whatever the engine.

The models differ in what they keep when space runs out. All of them name blocks by the chained
hashes of `prompts.block_hasher`, count in tokens, hold what requests in flight use, and tell of
changed content by `take_stored` and `take_evicted`, so that one index can mirror them all.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from epp.model.caches.lease import Lease
from epp.model.prompts.block_hasher import BlockHash


class Tier(Protocol):
    """A place that holds blocks, of which an engine's KV events tell. Every `CacheModel` is one."""

    def hashes(self) -> Sequence[BlockHash]:
        """Return all blocks that it holds."""

    def store(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> object:
        """Hold consecutive blocks of one chain, `sizes` in tokens."""

    def discard(self, hashes: Sequence[BlockHash]) -> object:
        """Hold these blocks no longer; unknown ones are ignored."""


class CacheModel(Protocol):
    """One endpoint's cache. Not thread-safe; one writer. Sizes and capacities are in tokens.

    `closed` says that no block is held without all that stand before it, and each block by its
    own hash: then the deepest held block of a chain may be searched for by jumps. Where it is
    False, only `match` knows.
    """

    @property
    def capacity(self) -> int:
        """All that the cache can hold."""

    @property
    def free(self) -> int:
        """What could be allocated now, by evicting all that nobody uses."""

    @property
    def closed(self) -> bool:
        """Whether what is held is closed under prefixes, block by block."""

    @property
    def block(self) -> int:
        """The engine's block size in tokens, at least 1: the unit of what requests generate."""

    @block.setter
    def block(self, block: int) -> None:
        """Take the size that the engine says it has; what is held keeps its own."""

    @property
    def offload_tier(self) -> Tier | None:
        """The tier in host memory, of which KV events tell apart; None where there is none."""

    def __len__(self) -> int:
        """Return how many blocks can be found."""

    def __iter__(self) -> Iterator[BlockHash]:
        """Go through all blocks that can be found; the cache must not change meanwhile."""

    def hashes(self) -> Sequence[BlockHash]:
        """Return all blocks that can be found, as they are now."""

    def match(self, hashes: Sequence[BlockHash]) -> int:
        """Count the leading blocks that are held."""

    def admit(
        self, hashes: Sequence[BlockHash], sizes: Sequence[int], blank: int, lookup: int
    ) -> Lease | None:
        """Let a prompt in: its blocks, and `blank` tokens of space that no hash names.

        `sizes` are those of the blocks, at least as many as `hashes`; only the first `lookup`
        blocks may hit. `Lease.cached` says how many did. None: it does not fit now, nothing
        changed. A prompt larger than the whole cache is given an empty lease.
        """

    def grow(self, lease: Lease, computed: int) -> bool:
        """Follow a request that has now computed `computed` tokens, its prompt's included.

        Full blocks of them are kept without a name until `name` gives them one. False: there is
        no space, nothing changed; the engine would preempt a request. Never shrinks.
        """

    def correct_sizes(self, lease: Lease, sizes: Sequence[int]) -> None:
        """Correct the sizes of what a prompt brought, now that it is known how long it is.

        `sizes` are those of all its blocks. What was allocated for it stays allocated.
        """

    def assign_hashes(self, lease: Lease, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> int:
        """Name what `lease` generated, from its first unhashed token on, as blocks of a chain.

        Works while the lease is held and after it was given back; returns how many blocks got
        a name: those that are still held and full. A second call continues where one left off.
        """

    def release(self, lease: Lease) -> None:
        """The request is over: what it computed stays, to be evicted in its turn."""

    def revoke(self, lease: Lease) -> None:
        """The request was never computed: what it did not find there is dropped."""

    def store(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """The engine says that it holds blocks, consecutive ones of one chain: believe it."""

    def discard(self, hashes: Sequence[BlockHash]) -> None:
        """The engine says that it evicted blocks; those in use here are about to be computed."""

    def resize(self, capacity: int) -> None:
        """Change the capacity; what is in use stays, and is owed until it is free."""

    def coarsen(self, blocks: int) -> None:
        """Hold at least `blocks` fewer, to save the picker's memory, at the cost of precision.

        Those that are next to be evicted go, or are merged with others (`take_merged`). What
        is in use stays. The capacity is unchanged.
        """

    def take_stored(self) -> Sequence[BlockHash]:
        """Return the hashes that became findable since the last call."""

    def take_evicted(self) -> Sequence[BlockHash]:
        """Return the hashes that can no longer be found since the last call."""

    def take_merged(self) -> Sequence[tuple[BlockHash, int]]:
        """Return the hashes that stand for more or fewer blocks since the last call: how many.

        Where nothing is ever merged, nothing.
        """
