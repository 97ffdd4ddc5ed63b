"""Prompts as caches see them: chains of block hashes, with their lengths in tokens."""
