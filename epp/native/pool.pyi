# The kernel promises what its twin does.
from epp.model.caches.block_pool.pool import BlockPool as BlockPool
