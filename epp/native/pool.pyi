# The kernel promises what its twin does.
from epp.model.blockpool import BlockPool as BlockPool
