"""Tokenization by vLLM's render endpoint, over HTTP."""
