"""The extension of the engine's blocks: the rules of `blocks.py` over C arrays."""
