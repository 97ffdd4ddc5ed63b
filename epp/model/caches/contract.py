"""`CacheModel`: the contract of a model of one endpoint's prefix cache, whatever the engine.

Models differ in what they evict when space runs out. All of them identify a block by its chained
hash (`prompts.block_hasher`), count in tokens, never evict blocks that requests in flight hold, and
report changes of their content, which feed one index over all endpoints.

Any class with these members is a model, in Python or compiled; there is no base class.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from epp.model.prompts.hashing import BlockHash

Key = int
"""A block's key within one cache: its hash, or a negative number if it has none."""


class Lease:
    """The space that one request holds; each kind of cache adds its own fields.

    The prefix cache hit `cached` blocks. Its blocks hold `tokens` tokens together;
    `reserved_tokens` are tokens of space allocated beside them, without content.
    """

    __slots__ = ("cached", "reserved_tokens", "tokens")

    def __init__(self, cached: int, tokens: int, reserved: int) -> None:
        self.cached = cached
        self.tokens = tokens
        self.reserved_tokens = reserved


Kind = TypeVar("Kind", bound=Lease)


def lease_of(kind: type[Kind], lease: Lease) -> Kind:
    """Return `lease` as a `kind`. Raises `TypeError` if another kind of cache gave it."""
    if not isinstance(lease, kind):
        raise TypeError("a lease of another kind of cache")
    return lease


class Tier(Protocol):
    """A place that holds blocks and that KV events speak of."""

    def hashes(self) -> Sequence[BlockHash]:
        """Return all blocks that can be found there, as a copy."""

    def store(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> object:
        """Hold consecutive blocks of one chain, of `sizes` tokens."""

    def discard(self, hashes: Sequence[BlockHash]) -> object:
        """Hold these blocks no longer; unknown ones are ignored."""


class CacheModel(Tier, Protocol):
    """One endpoint's cache. Not thread-safe; one writer. Sizes and capacities are in tokens.

    A `Lease` is what one request holds. It is good for the cache that gave it; another kind of
    cache raises `TypeError` for it.
    """

    # Size and make.

    @property
    def capacity(self) -> int:
        """All that the cache can hold, in tokens."""

    @property
    def free(self) -> int:
        """Tokens that could be allocated, by evicting all that no request holds.

        Negative if the cache shrank below what requests hold.
        """

    @property
    def blank(self) -> int:
        """Tokens that can be allocated without evicting anything; negative as `free` is."""

    def resize(self, capacity: int) -> None:
        """Change the capacity, in tokens. What requests hold stays until they release it."""

    @property
    def block(self) -> int:
        """The engine's block size in tokens, at least 1."""

    @block.setter
    def block(self, block: int) -> None:
        """Set the block size, in tokens, by which space is given out from here on."""

    @property
    def offload_tier(self) -> Tier | None:
        """The tier in host memory, which KV events name separately; None if there is none."""

    # Content.

    def __len__(self) -> int:
        """Return how many blocks can be found."""

    def match(self, hashes: Sequence[BlockHash]) -> int:
        """Return how many leading blocks of a chain are held."""

    @property
    def closed(self) -> bool:
        """Whether each held block has all its predecessors in the chain.

        Then the end of a held prefix can be found by jumps, otherwise only by `match` or a walk
        from the first block.
        """

    # Requests.

    def allocate(
        self, hashes: Sequence[BlockHash], sizes: Sequence[int], reserved: int, lookup: int
    ) -> Lease | None:
        """Allocate a prompt: its full blocks, and `reserved` tokens of space after them.

        `sizes` are the tokens of each block, at least as many as `hashes`. Only the first
        `lookup` blocks may hit; `Lease.cached` is how many did. Returns None, without any change,
        if it does not fit beside the blocks of other requests: the engine lets it wait. A prompt
        larger than the whole cache gets an empty lease.
        """

    def grow(self, lease: Lease, computed: int) -> bool:
        """Allocate the space that a request needs for `computed` tokens, prompt and output.

        Full blocks of output are held without hashes until `assign_hashes`. Returns False, without
        any change, if there is no space: the engine preempts a request. Nothing changes if
        `computed` is less than before, or the lease is empty or released.
        """

    def correct_sizes(self, lease: Lease, sizes: Sequence[int]) -> None:
        """Correct the tokens of each of a prompt's blocks, once its true length is known.

        `sizes` are those of all its blocks. The space of the prompt stays the same: tokens that
        blocks lose become space without content, and the other way round.
        """

    def assign_hashes(self, lease: Lease, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> int:
        """Give hashes to the blocks of output of `lease`, from the first without one on.

        Works while the lease is held and after its end. Returns how many of `hashes` were given:
        to blocks that are full and still held. A second call continues after the first.
        """

    def release(self, lease: Lease) -> None:
        """End a request that was computed: its blocks can be found, and evicted in their turn."""

    def revoke(self, lease: Lease) -> None:
        """End a request that was never computed: drop what only it brought."""

    # Reports of the engine.

    def store(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """Record that the engine holds consecutive blocks of one chain, of `sizes` tokens."""

    def discard(self, hashes: Sequence[BlockHash]) -> None:
        """Record that the engine evicted blocks. Those that requests hold here stay."""

    # Copies of other replicas.

    def contents(self) -> tuple[Sequence[BlockHash], Sequence[int]]:
        """Return blocks that can be found, with their tokens, the last to be evicted first.

        Models whose order of eviction cannot be expressed this way return none.
        """

    def restore(self, hashes: Sequence[BlockHash], sizes: Sequence[int], *, closed: bool) -> None:
        """Hold the `contents` of another replica's model of this cache, as far as they fit.

        An empty cache then evicts them in the same order, and is closed if that one was.
        """

    # Memory, and changes for the index.

    def coarsen(self, blocks: int) -> None:
        """Hold at least `blocks` fewer, to save the picker's memory, at the cost of precision.

        Those that are next to be evicted go. What requests hold stays; so does the capacity.
        """

    @property
    def changed(self) -> bool:
        """Whether `take_stored` or `take_evicted` may return anything."""

    def take_stored(self) -> Sequence[BlockHash]:
        """Return the blocks that can be found and could not at the last call."""

    def take_evicted(self) -> Sequence[BlockHash]:
        """Return the blocks that could be found at the last call and cannot any more."""
