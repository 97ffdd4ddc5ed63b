"""Simulated engines: vLLM's scheduler and block pool, and what its steps take."""
