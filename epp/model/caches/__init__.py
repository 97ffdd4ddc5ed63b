"""Models of prefix caches: one contract, one module an engine."""
