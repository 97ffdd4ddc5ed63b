"""Which model an endpoint's cache is given, and how it is made.

A pod's label decides (`warmpick.io/cache-model`), else the kind of its server, else vLLM.
"""

from collections.abc import Callable, Mapping

import msgspec

from epp.model.caches.contract import CacheModel
from epp.model.caches.offload import OffloadedCache
from epp.model.caches.plain_lru import PlainLru
from epp.model.caches.sglang import RadixCache
from epp.model.caches.sglang_eviction import DEFAULT_STRATEGY, STRATEGIES
from epp.model.caches.vllm_v0 import VllmV0Cache
from epp.model.caches.whole_prompt import WholePromptCache
from epp.model.kernels import BlockPool

CACHE_LABEL = "warmpick.io/cache-model"
"""A pod label: one of `MODELS`. Another value counts as none."""

UNKNOWN_CAPACITY = 1_000_000
"""Tokens of cache where an endpoint has not said: too much costs little, too little a lot."""

EVICTION_LABEL = "warmpick.io/eviction-policy"
"""A pod label: SGLang's `--radix-eviction-policy`, one of `STRATEGIES`, where not its default."""


class CacheSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What an endpoint's cache is made of; equal ones make equal caches.

    `model` is one of `MODELS`. In tokens: `capacity`, `block` (the engine's block or page), and
    `offload`, the second tier's capacity, 0 where there is none. `eviction` is for SGLang.
    """

    model: str
    capacity: int
    block: int
    eviction: str = DEFAULT_STRATEGY
    offload: int = 0

    def build(self) -> CacheModel:
        """Make an empty cache."""
        cache = MODELS[self.model](self)
        if self.offload > 0 and self.model not in _FLAT:
            return OffloadedCache(cache, self.offload)
        return cache


def _block_pool(spec: CacheSpec) -> CacheModel:
    return BlockPool(spec.capacity, spec.block)


def _radix_cache(spec: CacheSpec) -> CacheModel:
    return RadixCache(spec.capacity, spec.block, spec.eviction)


def _cached_blocks(spec: CacheSpec) -> CacheModel:
    return VllmV0Cache(spec.capacity, spec.block)


def _prompt_lru(spec: CacheSpec) -> CacheModel:
    return WholePromptCache(spec.capacity, spec.block)


def _plain_lru(spec: CacheSpec) -> CacheModel:
    return PlainLru(spec.capacity, spec.block)


DEFAULT_MODEL = "vllm"
MODELS: Mapping[str, Callable[[CacheSpec], CacheModel]] = {
    "vllm": _block_pool,
    "sglang": _radix_cache,
    "vllm-v0": _cached_blocks,
    "whole-prompt": _prompt_lru,
    "lru": _plain_lru,
}
"""Cache models by the value of `CACHE_LABEL`."""

_FLAT = frozenset({"lru"})
"""Models that know nothing of what they hold for whom, and so of no second tier."""

_OF_ENGINES: Mapping[str, str] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "trtllm-serve": "vllm",
    "triton-tensorrt-llm": "vllm",
}
"""Models by the kind of server. TensorRT-LLM's blocks age as vLLM's do: by the last release."""


def model_of(labels: Mapping[str, str], engine: str) -> str:
    """Choose the model of an endpoint from its labels, else from the kind of its server.

    `engine` is what its engine-type label or its metrics say, "" where neither does.
    """
    wanted = labels.get(CACHE_LABEL, "")
    return wanted if wanted in MODELS else _OF_ENGINES.get(engine, DEFAULT_MODEL)


def eviction_of(labels: Mapping[str, str]) -> str:
    """Return what an endpoint's labels say of SGLang's eviction policy, else its default."""
    wanted = labels.get(EVICTION_LABEL, "").lower()
    return wanted if wanted in STRATEGIES else DEFAULT_STRATEGY
