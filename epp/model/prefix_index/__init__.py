"""Which endpoints hold how much of a prompt: one index over all endpoints.

`index.py` is the reference, and runs if nothing is compiled; otherwise `native/` runs: the same
contract over C tables (docs/adr/0013-compiled.md).
"""
