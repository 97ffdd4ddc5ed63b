"""The net changes of one cache's content between two calls of `take_stored` or `take_evicted`."""

from collections.abc import Callable, Iterable, Sequence

from epp.model.prompts.hashing import BlockHash


class ContentChanges:
    """Collects blocks that came and went; `holds` returns whether the cache holds one.

    Answers are net: a block that came and went between two calls is not among the stored, one
    that went and came back is not among the evicted.
    """

    def __init__(self, holds: Callable[[BlockHash], bool]) -> None:
        self._holds = holds
        self._stored: list[BlockHash] = []
        self._evicted: list[BlockHash] = []

    def __bool__(self) -> bool:
        return bool(self._stored or self._evicted)

    def record_stored(self, hashes: Iterable[BlockHash]) -> None:
        """Record that blocks can be found."""
        self._stored += hashes

    def record_evicted(self, hashes: Iterable[BlockHash]) -> None:
        """Record that blocks can no longer be found."""
        self._evicted += hashes

    def take_stored(self) -> Sequence[BlockHash]:
        """Return the blocks recorded as stored since the last call that are still held."""
        stored, self._stored = self._stored, []
        return list(filter(self._holds, dict.fromkeys(stored)))

    def take_evicted(self) -> Sequence[BlockHash]:
        """Return the blocks recorded as evicted since the last call that are not held again."""
        evicted, self._evicted = self._evicted, []
        holds = self._holds
        return [each for each in dict.fromkeys(evicted) if not holds(each)]
