from epp.model.prompts.known_prefix_lengths import (
    KnownPrefixLengths as KnownPrefixLengths,
)  # the kernel promises what its twin does
