"""The scorers, by what they compare."""
