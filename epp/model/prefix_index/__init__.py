"""Which endpoints hold how much of a prompt: one index over all endpoints.

`index.py` is the reference, and what runs if nothing is compiled; with a compiler, `native/`
runs in its place: the same contract over C tables (docs/adr/0013-compiled.md).
"""
