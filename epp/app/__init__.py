"""The composition root: builds the object graph, runs it, and shuts it down in order."""
