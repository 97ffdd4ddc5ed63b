# The kernel promises what its twin does.
from epp.model.prefixindex import PrefixIndex as PrefixIndex
