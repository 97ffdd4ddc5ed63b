# The kernel promises what its twin does.
from epp.model.hashing import extend as extend
from epp.model.hashing import text_chain as text_chain
