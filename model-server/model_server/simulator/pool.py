"""The KV block pool by the rules of vLLM v1 (`vllm/v1/core/block_pool.py`, 0.32).

Block 0 is the null block and never used. A free block keeps its hash until it is allocated
again, so the free queue is also the eviction order. Knows no requests and no clock.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from model_server.simulator.hashes import BlockHash
from model_server.simulator.kv_events import EventLog


class BlockPool:
    """`num_blocks - 1` usable blocks with reference counts, hashes and a free queue.

    `log` records what is evicted or cleared.
    """

    def __init__(self, num_blocks: int, log: EventLog | None = None) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks must be at least 2 (one is the null block): {num_blocks}")
        self.num_blocks = num_blocks
        self._log = log
        self._references = [0] * num_blocks
        self._hashes: list[BlockHash | None] = [None] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        # A hash may be held by several blocks; the first inserted answers look-ups.
        self._cached: dict[BlockHash, dict[int, None]] = {}

    @property
    def free_count(self) -> int:
        """Blocks without references, cached or not."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of usable blocks that are referenced (`vllm:kv_cache_usage_perc`)."""
        return 1.0 - len(self._free) / (self.num_blocks - 1)

    def free_order(self) -> list[int]:
        """Free blocks, next to be evicted first."""
        return list(self._free)

    def references(self, block: int) -> int:
        """How many requests hold `block`."""
        return self._references[block]

    def hash_of(self, block: int) -> BlockHash | None:
        """Return the hash under which `block` is cached, if any."""
        return self._hashes[block]

    def longest_run(self, hashes: Sequence[BlockHash], limit: int) -> list[int]:
        """Blocks that hold the longest cached run from the start of `hashes[:limit]`."""
        run: list[int] = []
        for block_hash in hashes[:limit]:
            copies = self._cached.get(block_hash)
            if copies is None:
                break
            run.append(next(iter(copies)))
        return run

    def free_among(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` a touch would take off the free queue."""
        return sum(not self._references[block] for block in blocks)

    def touch(self, blocks: Iterable[int]) -> None:
        """Add a reference to cached blocks; those that were free can no longer be evicted."""
        for block in blocks:
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks from the front of the free queue, evicting what they cached.

        Raises `ValueError`, and changes nothing, if fewer are free.
        """
        if count > len(self._free):
            raise ValueError(f"{count} blocks wanted, {len(self._free)} free")
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._forget(block)
            self._references[block] = 1
        return taken

    def register(self, block: int, block_hash: BlockHash) -> None:
        """Make a referenced block findable under `block_hash`."""
        self._hashes[block] = block_hash
        self._cached.setdefault(block_hash, {})[block] = None

    def free(self, blocks: Sequence[int]) -> None:
        """Drop one reference each, last block first: a chain's tail is evicted before its head.

        Cached blocks go to the back of the queue, others to the front.
        """
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block]:
                continue
            self._free[block] = None
            if self._hashes[block] is None:
                self._free.move_to_end(block, last=False)

    def reset(self) -> bool:
        """Forget everything cached; False, and nothing changes, while a block is referenced."""
        if len(self._free) != self.num_blocks - 1:
            return False
        self._cached.clear()
        self._hashes = [None] * self.num_blocks
        if self._log is not None:
            self._log.cleared()
        return True

    def _forget(self, block: int) -> None:
        block_hash = self._hashes[block]
        if block_hash is None:
            return
        self._hashes[block] = None
        if self._log is not None:
            self._log.removed(block_hash)
        copies = self._cached[block_hash]
        del copies[block]
        if not copies:
            del self._cached[block_hash]
