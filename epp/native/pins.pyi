from epp.model.prompts.known_prefix_lengths import (
    Pins as Pins,
)  # the kernel promises what its twin does
