"""The choice of a cache model by labels and engine."""

import pytest

from epp.model.caches.block_pool.pool import BlockPool
from epp.model.caches.choice import (
    CACHE_LABEL,
    EVICTION_LABEL,
    MODELS,
    CacheSpec,
    eviction_of,
    model_of,
)
from epp.model.caches.offload import OffloadedCache
from epp.model.caches.plain_lru import PlainLru
from epp.model.caches.sglang import STRATEGIES, RadixCache
from epp.model.caches.whole_prompt import WholePromptCache

CLASSES = {
    "vllm": BlockPool,
    "sglang": RadixCache,
    "whole-prompt": WholePromptCache,
    "lru": PlainLru,
}


@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_model_is_made_with_its_capacity(model):
    cache = CacheSpec(model=model, capacity=6400, block=64).build()
    assert type(cache) is CLASSES[model]
    assert (cache.capacity, cache.free, len(cache)) == (6400, 6400, 0)


@pytest.mark.parametrize("model", sorted(MODELS))
def test_a_second_tier_goes_below_every_model_that_knows_its_requests(model):
    cache = CacheSpec(model=model, capacity=640, block=16, offload=3200).build()
    assert isinstance(cache, OffloadedCache) == (model != "lru")


@pytest.mark.parametrize(
    ("label", "engine", "model"),
    [
        ("", "", "vllm"),
        ("", "vllm", "vllm"),
        ("", "sglang", "sglang"),
        ("", "trtllm-serve", "vllm"),
        ("", "triton-tensorrt-llm", "vllm"),
        ("", "triton", "vllm"),
        ("", "something else", "vllm"),
        ("vllm-v0", "vllm", "vllm"),
        ("lru", "sglang", "lru"),
        ("vllm", "sglang", "vllm"),
        ("whole-prompt", "", "whole-prompt"),
        ("Mistyped", "sglang", "sglang"),
    ],
)
def test_the_label_decides_then_the_engine_then_vllm(label, engine, model):
    assert model_of({CACHE_LABEL: label} if label else {}, engine) == model


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_label_names_the_eviction_policy(strategy):
    assert eviction_of({EVICTION_LABEL: strategy.upper()}) == strategy
    spec = CacheSpec(model="sglang", capacity=64, block=16, eviction=strategy)
    assert isinstance(spec.build(), RadixCache)


@pytest.mark.parametrize("labels", [{}, {EVICTION_LABEL: "tlru"}, {EVICTION_LABEL: ""}])
def test_an_eviction_policy_that_is_not_known_is_the_default(labels):
    assert eviction_of(labels) == "lru"
