# The kernel promises what its twin does.
from epp.model.prefix_index import PrefixIndex as PrefixIndex
