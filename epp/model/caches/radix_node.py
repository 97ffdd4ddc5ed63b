"""One node of a radix tree over chains of block hashes (`epp.model.caches.radix_tree`)."""

from collections.abc import Sequence

from epp.model.caches.lease import Key
from epp.model.caches.sglang_eviction import Rank


class Node:
    """A run of blocks that only ever occur together: `keys` of `sizes`, `tokens` in all.

    `locks` counts the requests that hold it or something below it; `proven` says that one of them
    was computed. `ticket` is its valid place in the eviction order, None while it has none.
    """

    __slots__ = (
        "accessed",
        "children",
        "created",
        "hits",
        "keys",
        "locks",
        "orphan",
        "parent",
        "priority",
        "proven",
        "sizes",
        "ticket",
        "tokens",
    )

    def __init__(
        self, parent: "Node | None", keys: Sequence[Key], sizes: Sequence[int], now: int
    ) -> None:
        self.parent = parent
        self.keys = list(keys)
        self.sizes = list(sizes)
        self.tokens = sum(sizes)
        self.accessed = self.created = now
        self.hits = self.locks = self.priority = 0
        self.children: set[Node] = set()
        self.orphan = self.proven = False
        self.ticket: Ticket | None = None


Ticket = tuple[Rank, int, Node]
