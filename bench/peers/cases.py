"""Which plug-in is held against which router, and why they do not always pick alike."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import msgspec

from bench.peers.follow import (
    Hint,
    Prompts,
    as_chat,
    as_tokens,
    in_characters,
    in_chunks,
    in_single_tokens,
)
from bench.peers.hashes import no_hash, rendezvous, ring_in
from bench.peers.routers import Driver, Launch
from epp.policy.peers import production_stack, smg, vllm_router


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A policy, as a rule one of `epp replay --policy`.

    `prompts` are as the plug-in sees them in service, `like_router` as the router does. `hashes`
    takes from the router what only a hash decides; where that is the endpoint of a key, it is
    `keyed`, and the router is asked each request alone before. `why` explains the differences.
    """

    name: str
    router: str
    launch: Launch | Driver
    config: str
    prompts: Prompts = as_chat
    like_router: Prompts = as_chat
    hashes: Callable[[], AbstractContextManager[Hint | None]] = no_hash
    keyed: bool = False
    why: str = ""


def _smg(policy: str) -> Launch:
    return Launch(("-m", "smg", "launch", "--policy", policy))


def _vllm(policy: str, **more: bool) -> Launch:
    return Launch(("-m", "vllm_router.launch_router", "--policy", policy), **more)


_LETTERS = (
    "prompts that share no block can still begin with the same letters, which the router compares"
)
_RING = "the router's hash function puts endpoints at other places on the ring"
_SESSION = """
plugins: [{type: production-stack-session-scorer, parameters: {sessionKey: x-session-id}}]
"""
_PRODUCTION_STACK = "production-stack a6c01db0"
CASES = (
    Case(
        name="dynamo",
        router="ai-dynamo-runtime 1.6.1",
        launch=Driver("dynamo_selection"),
        config="plugins: [{type: dynamo-cost-scorer}]",
        prompts=as_tokens,
        like_router=as_tokens,
        why="a prompt that ends where a block ends counts as fully cached",
    ),
    Case(
        name="production-stack-prefix-aware",
        router=_PRODUCTION_STACK,
        launch=Driver("production_stack", ("prefixaware",), "production-stack/src"),
        config="plugins: [{type: production-stack-prefix-aware-scorer}]",
        like_router=in_chunks,
        why="the router's chunks do not end where blocks end",
    ),
    Case(
        name="production-stack-session",
        router=_PRODUCTION_STACK,
        launch=Driver("production_stack", ("session",), "production-stack/src"),
        config=_SESSION,
        hashes=partial(ring_in, production_stack),
        keyed=True,
        why=_RING,
    ),
    Case(
        name="ray-prefix-affinity",
        router="Ray 2.60.0",
        launch=Driver("ray_serve"),
        config="plugins: [{type: ray-prefix-affinity-scorer}]",
        like_router=in_characters(""),
        why=f"{_LETTERS}, so fewer endpoints have the longest match",
    ),
    Case(
        name="sglang-cache-aware",
        router="sglang-router 0.3.2",
        launch=Launch(("-m", "sglang_router.launch_router", "--policy", "cache_aware")),
        config="plugins: [{type: sglang-cache-aware-scorer}]",
        like_router=in_characters(" "),
        why=f"{_LETTERS}, so another endpoint was the first at a node of its tree",
    ),
    Case(
        name="smg-cache-aware",
        router="smg 1.13.0",
        launch=_smg("cache_aware"),
        config="plugins: [{type: smg-cache-aware-scorer}]",
        like_router=in_characters(" "),
        why=f"{_LETTERS}, so fewer endpoints have the longest match",
    ),
    Case(
        name="smg-prefix-hash",
        router="smg 1.13.0",
        launch=_smg("prefix_hash"),
        config="plugins: [{type: smg-prefix-hash-scorer}]",
        hashes=partial(ring_in, smg),
        keyed=True,
        why=_RING,
    ),
    Case(
        name="smg-least-load",
        router="smg 1.13.0",
        launch=_smg("least_load"),
        config="plugins: [{type: smg-least-load-scorer}]",
    ),
    Case(
        name="smg-power-of-two",
        router="smg 1.13.0",
        launch=_smg("power_of_two"),
        config="plugins: [{type: smg-power-of-two-picker}]",
    ),
    Case(
        name="vllm-cache-aware",
        router="vllm-router 0.1.17",
        launch=_vllm("cache_aware"),
        config="plugins: [{type: vllm-cache-aware-scorer}]",
        like_router=in_single_tokens,
        why="the router compares single tokens, which it gets from the workers' tokenizers",
    ),
    Case(
        name="vllm-kv-aware",
        router="vllm-router 0.1.17",
        launch=_vllm("kv_aware", kv_events=True),
        config="plugins: [{type: vllm-kv-aware-scorer}]",
        prompts=as_tokens,
        like_router=as_tokens,
    ),
    Case(
        name="vllm-consistent-hash",
        router="vllm-router 0.1.17",
        launch=_vllm("consistent_hash", sessions=True),
        config="plugins: [{type: vllm-consistent-hash-scorer}]",
        hashes=partial(ring_in, vllm_router),
        keyed=True,
        why=_RING,
    ),
    Case(
        name="vllm-sticky-least-loaded",
        router="vllm-router 0.1.17",
        launch=_vllm("sticky_least_loaded", sessions=True),
        config="plugins: [{type: vllm-sticky-least-loaded-scorer}]",
        hashes=rendezvous,
        why="if endpoints have equally many sessions, the router's hash function chooses another",
    ),
)
