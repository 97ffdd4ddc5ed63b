"""Compiled kernels. Nothing needs them: where one cannot be had, its twin does the work.

With WARMPICK_NATIVE=off in the environment none can be imported, and so no twin is spared.
"""

import importlib
import os

import msgspec

OFF = "turned off by WARMPICK_NATIVE=off"
if os.environ.get("WARMPICK_NATIVE") == "off":
    __path__.clear()


class Kernel(msgspec.Struct, frozen=True):
    """One kernel, `epp.native.NAME`, and what does its work without it."""

    name: str
    twin: str


KERNELS = (
    Kernel("framing", "epp.adapters.extproc.grpcio"),
    Kernel("http2", "epp.adapters.extproc.grpcio"),
    Kernel("codec", "epp.protocol.extproc.protobuf"),
    Kernel("hashing", "epp.model.prompts.hashing"),
    Kernel("hashset", "epp.model.prompts.hash_set"),
    Kernel("index", "epp.model.prefix_index"),
    Kernel("pool", "epp.model.caches.block_pool.pool"),
    Kernel("ledger", "epp.model.pods.ledger"),
    Kernel("lengths", "epp.model.prompts.text_lengths"),
    Kernel("pins", "epp.model.prompts.known_prefix_lengths"),
    Kernel("body", "epp.protocol.openai.request_json"),
    Kernel("watch", "epp.protocol.openai.object_scanner"),
)


def fault(name: str) -> str:
    """Say why a kernel cannot be had; empty where it can. Loads it."""
    if not __path__:
        return OFF
    try:
        importlib.import_module(f"{__name__}.{name}")
    except ImportError as error:  # where it was built, a library is not there, or another one
        missing = isinstance(error, ModuleNotFoundError) and error.name == f"{__name__}.{name}"
        return "not built" if missing else str(error)
    return ""


def faults() -> dict[str, str]:
    """Say of each kernel why it cannot be had, empty where it can. Loads them."""
    return {kernel.name: fault(kernel.name) for kernel in KERNELS}


def summary() -> str:
    """Say in one line which kernels are in use, and instead of which their twins are."""
    found = faults()
    if set(found.values()) == {OFF}:
        return f"none: {OFF}"
    compiled = [name for name, why in found.items() if not why]
    replaced = [f"{name} ({why})" for name, why in found.items() if why]
    return "; ".join(
        f"{title}: {', '.join(names)}"
        for title, names in (("compiled", compiled), ("not", replaced))
        if names
    )
