"""Simulated engines: vLLM's scheduler and block pool, and how long its steps take."""
