"""Recordings of a picker as traffic: their parts, the blocks in them, and conversations."""
