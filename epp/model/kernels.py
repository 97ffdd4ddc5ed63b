"""The compiled kernels where they were built, their Python twins where not.

A kernel and its twin promise the same; the rest of the model takes either from here. What twins
need themselves they take from elsewhere: `BlockHash` is in `epp.model.prompts.hashing`.
"""

try:
    from epp.native.hashing import extend, text_chain
except ImportError:
    from epp.model.prompts.hashing import extend, text_chain

try:
    from epp.native.hashset import HashSet
except ImportError:
    from epp.model.prompts.hash_set import HashSet

try:
    from epp.native.index import PrefixIndex
except ImportError:
    from epp.model.prefix_index import PrefixIndex

try:
    from epp.native.ledger import Ledger, take_snapshot
except ImportError:
    from epp.model.pods.ledger import Ledger, take_snapshot

try:
    from epp.native.lengths import kind_of, scaled, sizes_between, spread
except ImportError:
    from epp.model.prompts.text_lengths import kind_of, scaled, sizes_between, spread

try:
    from epp.native.pins import KnownPrefixLengths
except ImportError:
    from epp.model.prompts.known_prefix_lengths import KnownPrefixLengths

try:
    from epp.native.pool import BlockPool
except ImportError:
    from epp.model.caches.block_pool.pool import BlockPool

__all__ = [
    "BlockPool",
    "HashSet",
    "KnownPrefixLengths",
    "Ledger",
    "PrefixIndex",
    "extend",
    "kind_of",
    "scaled",
    "sizes_between",
    "spread",
    "take_snapshot",
    "text_chain",
]
