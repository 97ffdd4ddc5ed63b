"""Tokenizers of prompts: in this process, or by vLLM's render endpoint.

They are optional: a request that cannot be tokenized is routed by its text.
"""
