"""An engine's blocks by its own hashes: our hashes of them, and the state to continue from each.

Compiled: `native/blocks.pyx`, in an eighth of the memory. If a block ends where one of ours does,
our hash is kept. A smaller one may end within one of ours: then its token ids and its parent's name
are kept, so that the tokens before it are found through its parents. If one of those is gone,
nothing after it can be found; but engines evict the blocks after a block before the block itself.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import chain, islice, repeat
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from epp.model.kv_changes import BlocksStored, EngineHash
from epp.model.prompts.hashing import BlockHash, extend
from epp.model.request import TOKEN_BYTES
from epp.model.shards import SHARDS, Shards, freed

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
        self._rows: Shards[EngineHash, _Row] = Shards()
        self._copies: list[Shards[EngineHash, int]] = []
        # By group and block of ours: how many of the engine's blocks of another size fill it.
        self._fillers: list[Shards[BlockHash, int]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def hashes(self) -> list[BlockHash]:
        """Return our hashes of all blocks that are known."""
        return [own for shard in self._rows.all for row in shard.values() for own in row.ours]

    def ours_at(self, name: EngineHash, group: int) -> Sequence[BlockHash]:
        """Return our block that ends where a block of a group does; nothing if none does."""
        row = self._rows.of(name).get(name)
        if row is None or row.tokens or not self._number(name, group):
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
        while len(self._copies) <= group:
            self._copies.append(Shards())
            self._fillers.append(Shards())
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
        while (row := self._rows.of(name).get(name)) is not None:
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
        shard = self._rows.of(name)
        old = shard.setdefault(name, row)
        if old != row:
            for each in self._groups_of(name):
                given_up = self._unfill(old, each)
                outdated += given_up if each == group else ()
            del shard[name]
            shard[name] = row
            for each in self._groups_of(name):
                self._fill(row, each)
        self._add_copy(name, row, group)
        return old != row

    def _add_copy(self, name: EngineHash, row: "_Row", group: int) -> None:
        copies = self._copies[group].of(name)
        copies[name] = copies.get(name, 0) + 1
        if copies[name] == 1:
            self._fill(row, group)

    def _fill(self, row: "_Row", group: int) -> None:
        for own in row.ours if row.kind is _Kind.FILLED else ():
            fillers = self._fillers[group].of(own)
            fillers[own] = fillers.get(own, 0) + 1

    def _unfill(self, row: "_Row", group: int) -> list[BlockHash]:
        """Return our blocks that nothing fills in a group once a block is gone from there."""
        given_up = []
        for own in row.ours:
            fillers = self._fillers[group].of(own)
            left = fillers.pop(own, 0) - (row.kind is _Kind.FILLED)
            if left > 0:
                fillers[own] = left
            else:
                given_up.append(own)
        return given_up

    def _number(self, name: EngineHash, group: int) -> int:
        return self._copies[group].of(name).get(name, 0) if group < len(self._copies) else 0

    def _groups_of(self, name: EngineHash) -> Sequence[int]:
        return [group for group in range(len(self._copies)) if self._number(name, group)]

    def copy(self, names: Sequence[EngineHash], group: int) -> tuple[int, Sequence[BlockHash]]:
        """Add a copy of those blocks that are known; return how many, and our blocks in them."""
        while len(self._copies) <= group:
            self._copies.append(Shards())
            self._fillers.append(Shards())
        known, ours = 0, list[BlockHash]()
        for name in names:
            row = self._rows.of(name).get(name)
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
        for name in names:
            number = self._number(name, group)
            if not number:
                unknown += 1
                continue
            copies = self._copies[group].of(name)
            copies[name] = number - 1
            if number > 1:
                continue
            del copies[name]
            gone += 1
            given_up += self._unfill(self._rows.of(name)[name], group)
            if not self._groups_of(name):
                del self._rows.of(name)[name]
        return gone, unknown, given_up

    def drop_oldest(
        self, names: Sequence[EngineHash], most: int
    ) -> tuple[int, Sequence[BlockHash]]:
        """Drop the oldest blocks, but none that were just stored, until about `most` are left.

        Returns how many were dropped, and our blocks that nothing fills any more.
        """
        most = max(1, most // SHARDS)
        dropped, given_up = 0, list[BlockHash]()
        for name in names:
            shard = self._rows.of(name)
            if len(shard) <= most:
                continue
            many = min(len(shard) - most + most // 16, _MAX_DROPPED)
            for oldest in list(islice(shard, many)):
                row = shard.pop(oldest)
                for group in self._groups_of(oldest):
                    self._unfill(row, group)
                    del self._copies[group].of(oldest)[oldest]
                given_up += [own for own in row.ours if not self._is_filled(own)]
                dropped += 1
        return dropped, given_up

    def _is_filled(self, own: BlockHash) -> bool:
        return any(own in fillers.of(own) for fillers in self._fillers)

    def drain(self) -> Iterator[Sequence[BlockHash]]:
        """Remove all blocks, with their memory, and yield ours, some at a time.

        Nothing else may be called from then on.
        """
        for entries in self._rows.drain():
            yield list(chain.from_iterable(row.ours for _, row in entries))
        for _ in freed([*self._copies, *self._fillers]):
            yield ()


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
