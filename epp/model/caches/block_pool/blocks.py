"""The blocks of one pool: their sizes, their references, and which can be found.

There is no object per block. A block is a key: its hash, or, for a second copy of one, the hash
with a number above its 64 bits, or, for generated content that has no hash yet, a negative
number. It has a size in tokens and a stamp: 0 while in use, else the number of the release that
freed it. Of several copies the oldest is found, whose key is the bare hash; when it goes, the
next oldest takes its key (vLLM 0.32 `BlockHashToBlockMap.get_one_block`: the first inserted).

To save memory, adjacent blocks of one chain may be merged: the last one's key then stands for
several (`spans`), and a chain that runs through all of them finds them all.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import count, filterfalse
from typing import cast

from epp.model.caches.block_pool.bounds import LARGEST
from epp.model.caches.lease import Key
from epp.model.invariants import check
from epp.model.prompts.hashing import BlockHash

IN_USE = 0
"""The stamp of a block that requests hold."""
WIDEST = 64
"""Blocks that one key may stand for after merging, at most."""

_HASH_BITS = 64
_HASH = (1 << _HASH_BITS) - 1


def hash_of(key: Key) -> BlockHash:
    """Return the hash of a hashed block's key, which may be that of a copy."""
    return BlockHash(key & _HASH)


class BlockStore:
    """The blocks of one pool, by key.

    `stamps` has for each block the number of the release that freed it (`Lease.release_seq`), or
    `IN_USE`; `sizes` are in tokens. `shared` counts references beyond the first (vLLM `ref_cnt`
    less one), and has an entry for every block in use that another request hit. `copies` has, by
    hash, the keys of all but the oldest copy; `promoted` leads from a copy's key to the one that
    it took over. `spans` counts the blocks that a merged one stands for. `joints` are blocks
    after which another request's chain went on. `evicted` has the hashes dropped since they were
    last taken.
    """

    def __init__(self) -> None:
        self.stamps: dict[Key, int] = {}
        self.sizes: dict[Key, int] = {}
        self.shared: dict[Key, int] = {}
        self.copies: dict[BlockHash, list[Key]] = {}
        self.promoted: dict[Key, Key] = {}
        self.spans: dict[Key, int] = {}
        self.joints: set[Key] = set()
        self._numbers = count(1)
        self._stored: list[BlockHash] = []
        self._merged: list[BlockHash] = []
        self.evicted: list[Key] = []  # hashes, all of them

    # Content.

    def find(self, hashes: Sequence[BlockHash]) -> tuple[int, Sequence[Key]]:
        """Count the leading blocks that are held, and return their keys."""
        if self.spans:
            return self._find_merged(hashes)
        missing = next(filterfalse(self.stamps.__contains__, hashes), None)
        if missing is None:
            return len(hashes), hashes
        hits = hashes.index(missing)
        return hits, hashes[:hits]

    def _find_merged(self, hashes: Sequence[BlockHash]) -> tuple[int, Sequence[Key]]:
        keys: list[Key] = []
        position = 0
        while position < len(hashes):
            if hashes[position] not in self.stamps:
                window = hashes[position : position + WIDEST]
                spans = enumerate(map(self.spans.get, window))
                ahead = next((i for i, span in spans if span is not None and span > i), None)
                if ahead is None:
                    break
                position += ahead
            keys.append(hashes[position])
            position += 1
        return position, keys

    def findable(self) -> Iterator[BlockHash]:
        """Go through all blocks that can be found, each by the hash of its end."""
        return (BlockHash(key) for key in self.stamps if 0 <= key <= _HASH)

    def tokens(self, keys: Collection[Key]) -> int:
        """Return the tokens of blocks together."""
        return sum(map(self.sizes.__getitem__, keys))

    def unreferenced(self, keys: Sequence[Key]) -> Sequence[Key]:
        """Return the blocks that nobody holds; the same sequence where that is all of them."""
        stamps = self.stamps
        if all(map(stamps.__getitem__, keys)):
            return keys
        return [key for key in keys if stamps[key]]

    # Allocation.

    def touch(self, found: Sequence[Key], unreferenced: Sequence[Key]) -> int:
        """Add a reference to each block; `unreferenced` are those that nobody held.

        Returns the tokens of these. A block that is listed twice gets two references.
        """
        # vLLM block_pool.py `touch`: a block whose `ref_cnt` is 0 leaves the free queue; of others
        # only the count rises, so that recency is the time of the last release.
        first = dict.fromkeys(unreferenced, IN_USE)
        if len(first) < len(found):
            left = set(first)
            for key in found:
                if key in left:
                    left.remove(key)
                else:
                    self.shared[key] = self.shared.get(key, 0) + 1
        self.stamps.update(first)
        return self.tokens(first)

    def register(
        self, hashes: Sequence[BlockHash], sizes: Sequence[int], stamp: int
    ) -> Sequence[Key]:
        """Add blocks under their hashes, and return their keys."""
        new: dict[Key, int] = dict.fromkeys(hashes, stamp)
        if len(new) == len(hashes) and self.stamps.keys().isdisjoint(new):
            self._stored += hashes
            self.stamps.update(new)
            keys: Sequence[Key] = hashes
        else:
            keys = [self._key_of(block_hash, stamp) for block_hash in hashes]
        self.sizes.update(zip(keys, sizes, strict=True))
        return keys

    def _key_of(self, block_hash: BlockHash, stamp: int) -> Key:
        """Add a block under its hash, or as one more copy of what is there."""
        key: Key = block_hash
        # vLLM `BlockHashToBlockMap`: equal blocks are not merged; a hit takes the one added first.
        if key in self.stamps:
            key |= next(self._numbers) << _HASH_BITS
            self.copies.setdefault(block_hash, []).append(key)
        else:
            self._stored.append(block_hash)
        self.stamps[key] = stamp
        return key

    def correct(self, keys: Sequence[Key], sizes: Sequence[int], room: int) -> int:
        """Correct the sizes of blocks that no two requests hold; return by how much they grew.

        Sizes are in tokens; together the blocks grow by `room` at most.
        """
        if self.promoted:
            keys = [self.promoted.get(each, each) for each in keys]
        if self.shared.keys().isdisjoint(keys):
            grown = sum(sizes) - self.tokens(keys)
            if grown <= room:
                self.sizes.update(zip(keys, sizes, strict=True))
                return grown
        grown = 0
        for key, size in zip(keys, sizes, strict=True):
            change = size - self.sizes[key]
            if grown + change <= room and key not in self.shared:
                self.sizes[key] = size
                grown += change
        return grown

    def register_unhashed(self, size: int) -> Key:
        """Add a block in use of `size` tokens that has no hash yet; return its key."""
        key = -next(self._numbers)
        self.stamps[key], self.sizes[key] = IN_USE, size
        return key

    def assign_hashes(
        self, unhashed: Sequence[Key], hashes: Sequence[BlockHash], sizes: Sequence[int], slack: int
    ) -> tuple[Sequence[Key], list[Key]]:
        """Replace unhashed blocks by hashed ones of `sizes` tokens, as far as these reach.

        The last may lack fewer than `slack` tokens. Returns the keys of the hashed blocks, and
        what is left of the unhashed ones. Their stamp and the sum of tokens stay the same.
        """
        room = self.tokens(unhashed)
        stamp = self.stamps[unhashed[0]] if unhashed else IN_USE
        lengths: list[int] = []
        left = room
        for size in sizes[: len(hashes)]:
            if not left or size - left >= slack:
                break
            lengths.append(min(size, left))
            left -= lengths[-1]
        hashed = self.register(hashes[: len(lengths)], lengths, stamp)
        return hashed, self._use_up(unhashed, room - left)

    def _use_up(self, unhashed: Sequence[Key], used: int) -> list[Key]:
        """Take the first `used` tokens from unhashed blocks; return what is left of these."""
        for position, key in enumerate(unhashed):
            size = self.sizes[key]
            if size > used:
                self.sizes[key] = size - used
                return list(unhashed[position:])
            used -= size
            del self.stamps[key], self.sizes[key]
        return []

    # Release and eviction.

    def unshare(self, keys: Sequence[Key]) -> tuple[list[Key], bool]:
        """Remove one reference each; return the keys that nobody holds any more.

        Also returns whether these are adjacent in `keys`: none between them is still held.
        """
        last: list[Key] = []
        whole, gap = True, False
        for each in reversed(keys):
            key = self.promoted.pop(each, each)
            others = self.shared.get(key)
            if others:
                self.shared[key] = others - 1
                gap = True
                continue
            if others is not None:
                del self.shared[key]
            last.append(key)
            whole = whole and not gap
        return last[::-1], whole

    def drop(self, key: Key) -> int:
        """Remove a free block; return its tokens."""
        del self.stamps[key]
        size = self.sizes.pop(key)
        if key < 0:
            return size
        block_hash = hash_of(key)
        if self.spans.pop(key, None):
            self._merged.append(block_hash)
        copies = self.copies.get(block_hash)
        if copies is None:
            self.joints.discard(key)
            self.evicted.append(block_hash)
            return size
        if key > _HASH:
            copies.remove(key)
        else:
            self._promote(block_hash, copies.pop(0))
        if not copies:
            del self.copies[block_hash]
        return size

    def _promote(self, block_hash: BlockHash, copy: Key) -> None:
        """Move a copy to the place of the oldest, which is gone."""
        self.stamps[block_hash] = self.stamps.pop(copy)
        self.sizes[block_hash] = self.sizes.pop(copy)
        if copy in self.shared:
            self.shared[block_hash] = self.shared.pop(copy)
        self.promoted[copy] = block_hash

    def own(self, key: Key) -> Key:
        """Return the key of a block that was added under `key`, once."""
        return self.promoted.pop(key, key)

    # Precision for memory.

    def may_merge(self, first: Key, second: Key) -> bool:
        """Return whether two adjacent free blocks can be one: no other chain needs the first."""
        if self.sizes[first] + self.sizes[second] > LARGEST:
            return False
        if first < 0 or second < 0:
            return first < 0 and second < 0
        if first > _HASH or second > _HASH or first in self.joints:
            return False
        if first in self.copies or second in self.copies:
            return False
        return self.spans.get(first, 1) + self.spans.get(second, 1) <= WIDEST

    def merge(self, first: Key, second: Key) -> None:
        """Merge two adjacent blocks: the second stands for both."""
        del self.stamps[first]
        self.sizes[second] += self.sizes.pop(first)
        if second < 0:
            return
        self.spans[second] = self.spans.pop(first, 1) + self.spans.get(second, 1)
        self.evicted.append(first)
        self._merged.append(BlockHash(second))

    def check_invariants(self) -> None:
        """Assert that the maps agree with each other. For tests."""
        check(
            sizes_of_all=self.stamps.keys() == self.sizes.keys(),
            shared_held=self.shared.keys() <= self.stamps.keys(),
            spans_held=self.spans.keys() <= self.stamps.keys(),
            copies_held=all(
                copy in self.stamps for copies in self.copies.values() for copy in copies
            ),
        )

    # Changes.

    def take_stored(self) -> list[BlockHash]:
        """Return the hashes that became findable since the last call and still can be found."""
        stored, self._stored = self._stored, []
        return list(filter(self.stamps.__contains__, stored))

    def take_evicted(self) -> list[BlockHash]:
        """Return the hashes that were dropped since the last call and cannot be found."""
        evicted, self.evicted = self.evicted, []
        return cast("list[BlockHash]", list(filterfalse(self.stamps.__contains__, evicted)))

    def take_merged(self) -> list[tuple[BlockHash, int]]:
        """Return the hashes that stand for another number of blocks than before, and the number."""
        merged, self._merged = dict.fromkeys(self._merged), []
        return [(each, self.spans.get(each, 1)) for each in merged if each in self.stamps]
