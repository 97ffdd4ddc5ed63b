"""vLLM v1's KV block pool (`vllm/v1/core/block_pool.py`, 0.32)."""
