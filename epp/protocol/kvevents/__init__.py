"""KV events of vLLM and SGLang: batches, and the stream of a publisher."""
