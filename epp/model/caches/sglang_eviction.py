"""The eviction strategies of SGLang's radix cache: a rank for each node, the lowest goes first.

Mirrors SGLang 0.5.23 `srt/mem_cache/evict_policy.py` under the values of its flag
`--radix-eviction-policy`. `tlru` needs thresholds that no endpoint reports, and is not here.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

_PROTECTED_HITS = 2  # SGLang SLRUStrategy: protected_threshold


class NodeStats(Protocol):
    """A node of the tree as a strategy sees it. Times are ticks of the tree's clock."""

    @property
    def last_access_time(self) -> int:
        """The tick at which a request's path last passed it."""

    @property
    def creation_time(self) -> int:
        """The tick at which its content was inserted; both parts of a split node keep it."""

    @property
    def hit_count(self) -> int:
        """Requests that inserted it or found it."""

    @property
    def priority(self) -> int:
        """The highest priority of a request that used it."""


Rank = tuple[int, ...]
Strategy = Callable[[NodeStats], Rank]


def _lru(node: NodeStats) -> Rank:
    return (node.last_access_time,)


def _lfu(node: NodeStats) -> Rank:
    return (node.hit_count, node.last_access_time)


def _fifo(node: NodeStats) -> Rank:
    return (node.creation_time,)


def _mru(node: NodeStats) -> Rank:
    return (-node.last_access_time,)


def _filo(node: NodeStats) -> Rank:
    return (-node.creation_time,)


def _priority(node: NodeStats) -> Rank:
    return (node.priority, node.last_access_time)


def _slru(node: NodeStats) -> Rank:
    """Segmented LRU: nodes hit less than twice go before all others."""
    return (node.hit_count >= _PROTECTED_HITS, node.last_access_time)


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
