"""Warmpick: a Kubernetes endpoint picker that knows which pod's KV cache is warm."""

from epp import compiled as compiled  # it says where the modules of this package come from

__version__ = "0.1.0"
