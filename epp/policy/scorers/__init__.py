"""The scorers, by the facts that they compare."""
