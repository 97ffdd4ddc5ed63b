"""The extension of the prefix index: the contract of `index.py` over C tables."""
