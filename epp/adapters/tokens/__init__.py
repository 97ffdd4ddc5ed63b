"""Prompts as the engine's own tokens: made in process, or asked of vLLM's render endpoint.

Nothing here is needed: where tokens cannot be had, a request is routed by its text.
"""
