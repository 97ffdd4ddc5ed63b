"""Dicts of many entries, in shards, so that no step moves or frees more than some thousands.

A dict of a million entries that grows moves them all, and is freed as a whole: 30 to 70 ms.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

STEP = 1 << 9
"""Entries that are removed at a time."""
SHARDS = 64
"""An empty dict takes 64 bytes."""
_MASK = SHARDS - 1

Key = TypeVar("Key", bound=int)
Value = TypeVar("Value")


class Shards(Generic[Key, Value]):
    """Dicts by hash, each in the order of insertion."""

    __slots__ = ("all",)

    def __init__(self) -> None:
        self.all: list[dict[Key, Value]] = [{} for _ in range(SHARDS)]

    def __len__(self) -> int:
        return sum(map(len, self.all))

    def of(self, key: Key) -> dict[Key, Value]:
        """Return the dict that has a key, or would have it."""
        return self.all[key & _MASK]

    def drain(self) -> Iterator[list[tuple[Key, Value]]]:
        """Remove and yield all entries, some at a time."""
        for shard in self.all:
            while shard:
                yield [shard.popitem() for _ in range(min(STEP, len(shard)))]


def in_steps(hashes: Sequence[Key]) -> Iterator[Sequence[Key]]:
    """Yield blocks some at a time."""
    for start in range(0, len(hashes), STEP):
        yield hashes[start : start + STEP]


def freed(known: Sequence[Shards[Any, Any]]) -> Iterator[Sequence[Any]]:
    """Remove everything, and yield the keys."""
    for shards in known:
        for entries in shards.drain():
            yield [key for key, _ in entries]
