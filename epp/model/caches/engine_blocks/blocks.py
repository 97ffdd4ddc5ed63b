"""An engine's blocks by its own hashes: our hashes of them, and the state to continue from each.

Compiled: `native/blocks.pyx`, in an eighth of the memory. If a block ends where one of ours does,
our hash is kept. A smaller one may end within one of ours: then its token ids and its parent's name
are kept, so that the tokens before it are found through its parents. If one of those is gone,
nothing after it can be found; but engines evict the blocks after a block before the block itself.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import islice, repeat
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from epp.model.caches.engine_blocks.steps import STEP
from epp.model.kv_changes import BlocksStored, EngineHash
from epp.model.prompts.hashing import BlockHash, extend
from epp.model.request import TOKEN_BYTES

MAX_GROUPS = 16
"""Groups of copies are numbers below it."""
_MAX_DROPPED = 16
"""Blocks that are dropped for each stored one, as many may be too many once their size grows."""


class EngineBlocks:
    """Blocks of an engine, each with the number of its copies in each group; `block` is our size.

    A block is known while it has a copy. If its size is not ours, it counts for each of ours that
    it fills, and ours is dropped with the last one that fills it in a group. Names must not be
    chosen by anyone who knows `secret`.
    """

    def __init__(self, block: int, secret: int = 0) -> None:
        self._block = block
        self._rows: dict[EngineHash, _Row] = {}  # the oldest first
        self._copies: defaultdict[int, Counter[EngineHash]] = defaultdict(Counter)  # by group
        # By group and block of ours: how many of the engine's blocks of another size fill it.
        self._fillers: defaultdict[int, Counter[BlockHash]] = defaultdict(Counter)

    def __len__(self) -> int:
        return len(self._rows)

    def hashes(self) -> list[BlockHash]:
        """Return our hashes of all blocks that are known."""
        return [own for row in self._rows.values() for own in row.ours]

    def ours_at(self, name: EngineHash, group: int) -> Sequence[BlockHash]:
        """Return our block that ends where a block of a group does; nothing if none does."""
        row = self._rows.get(name)
        if row is None or row.tokens or not self._copies[group][name]:
            return ()
        return row.ours[-1:]

    def store(
        self, change: BlocksStored, root: int, group: int
    ) -> tuple[Sequence[BlockHash], Sequence[BlockHash], int] | None:
        """Add a copy of each of the blocks, which have tokens; None if they have no place.

        They have none if what precedes them is not known; `root` is the seed of the first block.
        Returns our blocks that they fill; those that nothing fills in the group any more, because
        blocks had another content under the same name before; and how many had. Raises
        `ValueError` if the blocks do not have as many tokens.
        """
        if len(change.tokens) != len(change.hashes) * change.size * TOKEN_BYTES:
            raise ValueError("the number of tokens is not that of the blocks")
        before = (root, b"") if change.parent is None else self._trace(change.parent)
        if before is None or change.size < 1:
            return None
        ours: list[BlockHash] = []
        outdated: list[BlockHash] = []
        renamed = 0
        for name, row in self._hash(change, *before):
            renamed += self._put(name, row, group, outdated)
            ours += row.ours
        return ours, outdated, renamed

    def _trace(self, name: EngineHash) -> tuple[int, bytes] | None:
        """Return the seed of the blocks after a block, and the tokens since; None if unknown."""
        tokens = b""
        while (row := self._rows.get(name)) is not None:
            tokens = row.tokens + tokens
            if len(tokens) >= self._block * TOKEN_BYTES:
                return None
            if row.kind is not _Kind.AFTER:
                return row.link, tokens
            name = EngineHash(row.link)
        return None

    def _hash(
        self, change: BlocksStored, seed: int, partial: bytes
    ) -> Iterator[tuple[EngineHash, "_Row"]]:
        size, content, block = change.size, change.content, self._block
        width = size * TOKEN_BYTES
        filled = _Kind.FILLED if size != block or partial or content else _Kind.WHOLE
        before = change.parent or 0
        blocks = zip(change.hashes, content or repeat(b""), strict=False)
        for number, (name, extra) in enumerate(blocks):
            if extra:  # no prompt of token ids alone has this hash
                seed = xxh3_64_intdigest(extra, seed)
            own = change.tokens[number * width : (number + 1) * width]
            follows = bool(partial) and not extra
            partial += own
            ends = range(block, len(partial) // TOKEN_BYTES + 1, block)
            ours = tuple(extend(seed, partial, ends, TOKEN_BYTES))
            if ours:
                seed, partial = ours[-1], partial[len(ours) * block * TOKEN_BYTES :]
                yield name, _Row(filled, seed, partial, ours[:-1])
            elif follows:
                yield name, _Row(_Kind.AFTER, before, own)
            else:
                yield name, _Row(_Kind.FIRST, seed, partial)
            before = name

    def _put(self, name: EngineHash, row: "_Row", group: int, outdated: list[BlockHash]) -> bool:
        """Return whether another content had the name."""
        old = self._rows.setdefault(name, row)
        if old != row:
            for each in self._groups_of(name):
                given_up = self._unfill(old, each)
                outdated += given_up if each == group else ()
            del self._rows[name]
            self._rows[name] = row
            for each in self._groups_of(name):
                self._fill(row, each)
        self._add_copy(name, row, group)
        return old != row

    def _add_copy(self, name: EngineHash, row: "_Row", group: int) -> None:
        self._copies[group][name] += 1
        if self._copies[group][name] == 1:
            self._fill(row, group)

    def _fill(self, row: "_Row", group: int) -> None:
        if row.kind is _Kind.FILLED:
            self._fillers[group].update(row.ours)

    def _unfill(self, row: "_Row", group: int) -> list[BlockHash]:
        """Return our blocks that nothing fills in a group once a block is gone from there."""
        given_up, fillers = [], self._fillers[group]
        for own in row.ours:
            left = fillers.pop(own, 0) - (row.kind is _Kind.FILLED)
            if left > 0:
                fillers[own] = left
            else:
                given_up.append(own)
        return given_up

    def _groups_of(self, name: EngineHash) -> Sequence[int]:
        return [group for group, copies in self._copies.items() if name in copies]

    def copy(self, names: Sequence[EngineHash], group: int) -> tuple[int, Sequence[BlockHash]]:
        """Add a copy of those blocks that are known; return how many, and our blocks in them."""
        known, ours = 0, list[BlockHash]()
        for name in names:
            row = self._rows.get(name)
            if row is not None:
                self._add_copy(name, row, group)
                known += 1
                ours += row.ours
        return known, ours

    def remove(
        self, names: Sequence[EngineHash], group: int
    ) -> tuple[int, int, Sequence[BlockHash]]:
        """Remove a copy of each block from a group.

        Returns how many had their last one there, how many had none, and our blocks that nothing
        fills there any more.
        """
        gone, unknown, given_up = 0, 0, list[BlockHash]()
        copies = self._copies[group]
        for name in names:
            if not copies[name]:
                unknown += 1
                continue
            copies[name] -= 1
            if copies[name]:
                continue
            del copies[name]
            gone += 1
            given_up += self._unfill(self._rows[name], group)
            if not self._groups_of(name):
                del self._rows[name]
        return gone, unknown, given_up

    def drop_oldest(
        self, names: Sequence[EngineHash], most: int
    ) -> tuple[int, Sequence[BlockHash]]:
        """Drop the oldest blocks, but none that were just stored, until about `most` are left.

        Returns how many were dropped, and our blocks that nothing fills any more.
        """
        given_up: list[BlockHash] = []
        excess = max(0, len(self._rows) - max(1, most))
        dropped = list(islice(self._rows, min(excess, _MAX_DROPPED * len(names))))
        for name in dropped:
            row = self._rows.pop(name)
            for group in self._groups_of(name):
                self._unfill(row, group)
                del self._copies[group][name]
            fillers = self._fillers.values()
            given_up += [own for own in row.ours if not any(own in each for each in fillers)]
        return len(dropped), given_up

    def drain(self) -> Iterator[Sequence[BlockHash]]:
        """Remove all blocks, with their memory, and yield ours, some at a time.

        Nothing else may be called from then on.
        """
        rows = self._rows
        while rows:
            some = [rows.popitem()[1] for _ in range(min(STEP, len(rows)))]
            yield [own for row in some for own in row.ours]
        self._copies.clear()
        self._fillers.clear()


class _Kind(IntEnum):
    """The meaning of a row's `link`, and whether the block counts for those that it fills."""

    AFTER = 0  # the parent's name, as this block and what precedes it end within one of ours
    FIRST = 1  # the seed of one of ours, within which the block begins and ends
    FILLED = 2  # our hash of the last one that it fills; it counts
    WHOLE = 3  # the same; it has the size of ours


class _Row(NamedTuple):
    """What is kept of a block: a name or hash, and the tokens since that; of `AFTER` its own.

    `more` are the blocks of ours that it fills before `link`.
    """

    kind: _Kind
    link: int
    tokens: bytes = b""
    more: tuple[BlockHash, ...] = ()

    @property
    def ours(self) -> tuple[BlockHash, ...]:
        """Our blocks that it fills."""
        return (*self.more, BlockHash(self.link)) if self.kind >= _Kind.FILLED else ()
