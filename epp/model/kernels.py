"""The compiled kernels where they were built, their Python twins where not.

A kernel and its twin promise the same; the rest of the model takes either from here.
"""

try:
    from epp.native.index import PrefixIndex
except ImportError:
    from epp.model.prefixindex import PrefixIndex

try:
    from epp.native.ledger import Ledger, survey
except ImportError:
    from epp.model.ledger import Ledger, survey

__all__ = ["Ledger", "PrefixIndex", "survey"]
