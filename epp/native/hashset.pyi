from epp.model.prompts.hash_set import HashSet as HashSet  # the kernel promises what its twin does
