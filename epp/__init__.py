"""Warmpick: a Kubernetes endpoint picker that knows which pod's KV cache is warm."""

__version__ = "0.1.0"
