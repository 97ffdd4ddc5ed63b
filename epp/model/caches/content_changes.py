"""What became findable in a cache, and what can no longer be found, since somebody last asked."""

from collections.abc import Callable, Iterable, Sequence

from epp.model.prompts.block_hasher import BlockHash


class ContentChanges:
    """Collects changes of one cache's content; `holds` says what it holds now.

    Answers are net: what came and went since the last question is not said to have come, and
    what went and came back is not said to have gone.
    """

    def __init__(self, holds: Callable[[BlockHash], bool]) -> None:
        self._holds = holds
        self._stored: list[BlockHash] = []
        self._evicted: list[BlockHash] = []

    def stored(self, hashes: Iterable[BlockHash]) -> None:
        """Note that blocks can be found."""
        self._stored += hashes

    def evicted(self, hashes: Iterable[BlockHash]) -> None:
        """Note that blocks cannot be found any more."""
        self._evicted += hashes

    def take_stored(self) -> Sequence[BlockHash]:
        """Return what became findable since the last call, and still is."""
        stored, self._stored = self._stored, []
        return list(filter(self._holds, dict.fromkeys(stored)))

    def take_evicted(self) -> Sequence[BlockHash]:
        """Return what can no longer be found since the last call, and still cannot."""
        evicted, self._evicted = self._evicted, []
        holds = self._holds
        return [each for each in dict.fromkeys(evicted) if not holds(each)]
