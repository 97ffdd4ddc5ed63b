# The kernel promises what its twin does.
from epp.model.prompts.hashing import extend as extend
from epp.model.prompts.hashing import text_chain as text_chain
