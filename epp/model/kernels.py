"""The compiled kernels where they were built, their Python twins where not.

A kernel and its twin promise the same; the rest of the model takes either from here. What twins
need themselves they take from elsewhere: `BlockHash` is in `epp.model.hashing`.
"""

try:
    from epp.native.hashing import extend, text_chain
except ImportError:
    from epp.model.hashing import extend, text_chain

try:
    from epp.native.hashset import HashSet
except ImportError:
    from epp.model.hashset import HashSet

try:
    from epp.native.index import PrefixIndex
except ImportError:
    from epp.model.prefixindex import PrefixIndex

try:
    from epp.native.ledger import Ledger, survey
except ImportError:
    from epp.model.ledger import Ledger, survey

try:
    from epp.native.lengths import kind_of, scaled, sizes_between, spread
except ImportError:
    from epp.model.lengths import kind_of, scaled, sizes_between, spread

try:
    from epp.native.pins import Pins
except ImportError:
    from epp.model.pins import Pins

try:
    from epp.native.pool import BlockPool
except ImportError:
    from epp.model.blockpool import BlockPool

__all__ = [
    "BlockPool",
    "HashSet",
    "Ledger",
    "Pins",
    "PrefixIndex",
    "extend",
    "kind_of",
    "scaled",
    "sizes_between",
    "spread",
    "survey",
    "text_chain",
]
