"""Blocks that KV events report, but that need no space of their own in the model of the cache.

KV events lead to hashes of token ids. A prompt that came as text, because no tokenizer answered,
has other hashes: the model keeps it by the engine's rules, as without events. The blocks that the
engine reports for it need no space in the model, which has allocated it under the hashes of text.
They are kept aside: found while the engine holds them, but without space.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from epp.model.caches.contract import CacheModel, Tier
from epp.model.caches.engine_blocks.block_set import BlockSet
from epp.model.prompts.hashing import BlockHash


class ReportedBlocks:
    """A `Tier` over `cache`, with the blocks `aside` that the engine holds and the cache lacks.

    `aside` is in the order of arrival; its values mean nothing. It gets blocks after a prompt of
    text, until the engine has stored as many tokens as the cache has room for: by then the engine
    has evicted that text, unless more came. Blocks that the cache evicts meanwhile are also kept
    aside if the engine still holds them. `changing`: the changes of the cache's content must go
    through `amend`.
    """

    def __init__(self, cache: CacheModel) -> None:
        self.cache: Final = cache
        self.aside: dict[BlockHash, None] = {}
        self.changing = False
        self._held = BlockSet()
        self._room = 0  # tokens that the engine must store until no more blocks are put aside
        self._came: list[BlockHash] = []
        self._gone: list[BlockHash] = []

    @property
    def offload_tier(self) -> Tier | None:
        """The cache's tier in host memory, where no blocks are put aside."""
        return self.cache.offload_tier

    def expect_text(self) -> None:
        """From now on put aside what the engine stores: a prompt of text is sent to it."""
        self._room = self.cache.capacity
        self.changing = True

    # Reports of the engine.

    def hashes(self) -> Sequence[BlockHash]:
        """Return all blocks that the cache holds, and all that the engine is known to hold."""
        return [*self.cache.hashes(), *chain.from_iterable(self._held.parts())]

    def store(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        """Record that the engine holds consecutive blocks of one chain, of `sizes` tokens."""
        self._held.add(hashes)
        if self._room <= 0:
            self.cache.store(hashes, sizes)
            return
        self._room -= sum(sizes)
        match, aside = self.cache.match, self.aside
        for position in range(match(hashes), len(hashes)):
            block_hash = hashes[position]
            if block_hash not in aside and not match((block_hash,)):
                aside[block_hash] = None
                self._came.append(block_hash)

    def discard(self, hashes: Sequence[BlockHash]) -> None:
        """Record that the engine evicted blocks."""
        self._held.discard(hashes)
        self._drop([each for each in hashes if each in self.aside])
        self.cache.discard(hashes)

    # Memory, and changes for the index.

    def coarsen(self, blocks: int) -> int:
        """Drop up to `blocks` of those aside, the newest first; return how many."""
        last = list(self.aside)[max(0, len(self.aside) - blocks) :]
        self._drop(last)
        return len(last)

    def amend(
        self, stored: Sequence[BlockHash], evicted: Sequence[BlockHash]
    ) -> tuple[Sequence[BlockHash], Sequence[BlockHash]]:
        """Return the blocks that can now be found, and those that no longer can.

        A block may be in both: it is no longer found in the cache, but here.
        """
        aside, came, gone = self.aside, self._came, self._gone
        for block_hash in stored:
            aside.pop(block_hash, None)
        kept = [each for each in evicted if each in self._held] if self._room > 0 else []
        aside.update(dict.fromkeys(kept))
        self._came, self._gone = [], []
        self.changing = self._room > 0 or bool(aside)
        came = [each for each in (*came, *kept) if each in aside]
        return [*stored, *came], [*evicted, *gone]

    def clear(self) -> Iterator[Sequence[BlockHash]]:
        """Drop all blocks aside: the engine's content is no longer known.

        Return the blocks that were known; their memory is freed as they are taken.
        """
        self._room = 0
        held, self._held = self._held, BlockSet()
        self._drop(list(self.aside))
        return held.drain()

    def known(self, hashes: Sequence[BlockHash]) -> int:
        """Return how many leading blocks of a chain the engine is known to hold."""
        return next((at for at, each in enumerate(hashes) if each not in self._held), len(hashes))

    def held_blocks(self) -> Iterator[Sequence[BlockHash]]:
        """Yield the blocks that the engine is known to hold, some at a time, as they may change."""
        return self._held.parts()

    def drain(self) -> Iterator[BlockHash]:
        """Yield the blocks that the engine was known to hold, and free their memory."""
        return chain.from_iterable(self._held.drain())

    def _drop(self, hashes: Sequence[BlockHash]) -> None:
        for block_hash in hashes:
            del self.aside[block_hash]
        self._gone += hashes
