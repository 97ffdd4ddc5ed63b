"""KV event batches of vLLM and SGLang, and the stream that they come in."""
