"""What one request holds of a radix tree (`epp.model.caches.sglang`)."""

from collections.abc import Sequence

from epp.model.caches.lease import Key, Lease
from epp.model.caches.radix_node import Node
from epp.model.prompts.hashing import BlockHash


class RadixLease(Lease):
    """What one request holds: the path to `node`, and `blank` tokens outside the tree.

    `computed` counts its tokens that were computed. `names` and `name_sizes` are known of its
    output and not yet in the tree; `unnamed` is the key of output that nobody has named, once it
    is in the tree.
    """

    __slots__ = ("computed", "name_sizes", "names", "node", "unnamed")

    def __init__(self, keys: Sequence[Key], cached: int, tokens: int, blank: int) -> None:
        super().__init__(keys, cached, tokens, blank)
        self.node: Node | None = None
        self.computed = 0
        self.names: list[BlockHash] = []
        self.name_sizes: list[int] = []
        self.unnamed: Key = 0
