"""The extension of the block pool: the rules of `pool.py` over C arrays."""
