"""The composition root, and the director of all exchanges."""
