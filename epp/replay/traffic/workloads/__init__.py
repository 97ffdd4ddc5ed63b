"""Workloads that are drawn by published distributions, and the times at which they arrive."""
