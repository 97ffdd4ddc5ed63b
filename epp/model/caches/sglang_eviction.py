"""What SGLang's radix cache evicts first: one rank per strategy, the smallest goes.

Mirrors SGLang 0.5.23 `srt/mem_cache/evict_policy.py` under the names of its flag
`--radix-eviction-policy`; `tlru`, which needs thresholds that no endpoint tells, is not here.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

_PROTECTED_HITS = 2


class Aged(Protocol):
    """A node of the tree as a strategy sees it. Times are ticks of the cache's own clock."""

    @property
    def accessed(self) -> int:
        """When it was last on a path that a request took."""

    @property
    def created(self) -> int:
        """When its content came; both parts of a split node keep it."""

    @property
    def hits(self) -> int:
        """How many requests inserted it or found it."""

    @property
    def priority(self) -> int:
        """The highest priority of a request that used it."""


Rank = tuple[int, ...]
Strategy = Callable[[Aged], Rank]


def _lru(node: Aged) -> Rank:
    return (node.accessed,)


def _lfu(node: Aged) -> Rank:
    return (node.hits, node.accessed)


def _fifo(node: Aged) -> Rank:
    return (node.created,)


def _mru(node: Aged) -> Rank:
    return (-node.accessed,)


def _filo(node: Aged) -> Rank:
    return (-node.created,)


def _priority(node: Aged) -> Rank:
    return (node.priority, node.accessed)


def _slru(node: Aged) -> Rank:
    """Segmented: what was asked for twice goes after all that was not."""
    return (node.hits >= _PROTECTED_HITS, node.accessed)


DEFAULT_STRATEGY = "lru"
STRATEGIES: Mapping[str, Strategy] = {
    "lru": _lru,
    "lfu": _lfu,
    "fifo": _fifo,
    "mru": _mru,
    "filo": _filo,
    "priority": _priority,
    "slru": _slru,
}
