"""Benchmarks: one command each, every figure with its spread, its floor and its budget."""
