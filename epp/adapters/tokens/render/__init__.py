"""Tokens asked of vLLM's render endpoint over HTTP."""
