"""The table of cache models, and the choice of one for an endpoint.

A pod's label decides (`warmpick.io/cache-model`), else the kind of its server, else vLLM.
`docs/engines.md` lists the other places that belong to a model.
"""

from collections.abc import Callable, Mapping

import msgspec

from epp.model.caches.block_pool.pool import BlockPool
from epp.model.caches.contract import CacheModel
from epp.model.caches.offload import OffloadedCache
from epp.model.caches.plain_lru import PlainLru
from epp.model.caches.sglang import DEFAULT_STRATEGY, STRATEGIES, RadixCache
from epp.model.caches.whole_prompt import WholePromptCache
from epp.model.endpoint import Endpoint, Load

CACHE_LABEL = "warmpick.io/cache-model"
"""A pod label whose value is one of `MODELS`; any other value is ignored."""

UNKNOWN_CAPACITY = 1_000_000
"""Tokens, for an endpoint that has not reported its capacity.

Too much costs little; half the true capacity costs more than any policy gains.
"""

EVICTION_LABEL = "warmpick.io/eviction-policy"
"""A pod label with SGLang's `--radix-eviction-policy`: one of `STRATEGIES`, default `lru`."""


class CacheSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The make of an endpoint's cache; equal specs make equal caches.

    `model` is one of `MODELS`. `capacity`, `block` (the engine's block or page size) and
    `offload` (the capacity of the tier in host memory, 0 for none) are in tokens. `eviction` is
    one of `STRATEGIES`, used by SGLang's model alone.
    """

    model: str
    capacity: int
    block: int
    eviction: str = DEFAULT_STRATEGY
    offload: int = 0

    def build(self) -> CacheModel:
        """Return an empty cache."""
        cache = MODELS[self.model](self)
        if self.offload > 0 and self.model not in SINGLE_TIER:
            return OffloadedCache(cache, self.offload)
        return cache


DEFAULT_MODEL = "vllm"
MODELS: Mapping[str, Callable[[CacheSpec], CacheModel]] = {
    "vllm": lambda spec: BlockPool(spec.capacity, spec.block),
    "sglang": lambda spec: RadixCache(spec.capacity, spec.block, spec.eviction),
    "whole-prompt": lambda spec: WholePromptCache(spec.capacity, spec.block),
    "lru": lambda spec: PlainLru(spec.capacity, spec.block),
}
"""Makers of cache models by the value of `CACHE_LABEL`."""

SINGLE_TIER = frozenset({"lru"})
"""Models that keep no account of requests, so that no second tier can be put below them."""

MODEL_OF_ENGINE: Mapping[str, str] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "trtllm-serve": "vllm",
    "triton-tensorrt-llm": "vllm",
}
"""Models by the value of the engine-type label, if it is not `DEFAULT_MODEL`'s to choose.

TensorRT-LLM's blocks are evicted in vLLM's order: longest since the last release first.
"""


def model_of(labels: Mapping[str, str], engine: str) -> str:
    """Return the model of an endpoint: by its labels, else by the kind of its server.

    `engine` is the server's kind by its engine-type label or its metrics, "" if unknown.
    """
    wanted = labels.get(CACHE_LABEL, "")
    return wanted if wanted in MODELS else MODEL_OF_ENGINE.get(engine, DEFAULT_MODEL)


def eviction_of(labels: Mapping[str, str]) -> str:
    """Return SGLang's eviction policy by an endpoint's labels, else SGLang's default."""
    wanted = labels.get(EVICTION_LABEL, "").lower()
    return wanted if wanted in STRATEGIES else DEFAULT_STRATEGY


def spec_of(endpoint: Endpoint, load: Load, before: CacheSpec) -> CacheSpec:
    """Return the spec of an endpoint's cache; what the load does not report is as in `before`."""
    labels, second = endpoint.labels, load.offload_tokens
    return CacheSpec(
        model=model_of(labels, load.engine),
        capacity=load.capacity_tokens or before.capacity,
        block=load.block_size or before.block,
        eviction=eviction_of(labels),
        offload=(endpoint.offload_tokens or 0) if second is None else second,
    )
