"""Compiled kernels. Nothing needs them: where they were not built, their twins do the work."""
