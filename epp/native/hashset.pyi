from epp.model.hashset import HashSet as HashSet  # the kernel promises what its twin does
