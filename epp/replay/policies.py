"""Policies to compare by name: llm-d-router's, the product's own, and other routers'."""

from collections.abc import Mapping

from epp.config.file import POLICIES
from epp.policy.flow.settings import FlowSettings
from epp.replay.plan import OraclePolicy, Policy

LLM_D_ROUTER_SCRAPE_SECONDS = 0.05
"""llm-d-router `--metrics-refresh-interval`, by default."""

_OWN_INDEX = """
plugins:
- {type: approx-prefix-cache-producer}
- {type: approx-prefix-cache-producer, name: lru}
"""
"""The second one is an index by llm-d-router's rules."""
_LLM_D_ROUTER = (
    POLICIES["linear"]
    .replace("\nplugins:\n", _OWN_INDEX, 1)
    .replace(
        "{type: prefix-cache-scorer}",
        "{type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: lru}}",
    )
)
_GUIDE = """
plugins:
- {type: inflight-load-producer}
- {type: approx-prefix-cache-producer}
- {type: approx-prefix-cache-producer, name: lru}
- type: prefix-cache-affinity-filter
  parameters: {affinityThreshold: 0.8, prefixMatchInfoProducerName: lru}
- {type: token-load-scorer}
- {type: max-score-picker}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: prefix-cache-affinity-filter}
  - {pluginRef: token-load-scorer}
  - {pluginRef: max-score-picker}
"""
_SMG = """
plugins:
- type: utilization-filter
  parameters:
    fallbackOnEmpty: true
    conditions:
    - {metric: waiting-queue, maxValue: 7}
    - {metric: kv-cache-utilization, maxValue: 0.8}
- {type: %s}
"""
"""smg leaves out workers where 8 wait or 0.8 of the cache is used, while it has others."""
_ONE_SCORER = (
    *("aibrix-prefix-cache", "aibrix-vtc-basic", "d2lpm", "dualmap", "kubeai-chwbl", "lmetric"),
    *("preble-e2", "production-stack-load-aware", "production-stack-prefix-aware"),
    *("ray-prefix-affinity", "sglang-cache-aware", "vllm-cache-aware", "vllm-consistent-hash"),
    *("vllm-kv-aware", "vllm-sticky-least-loaded"),
)
"""Policies that are one scorer of their name."""
_PEERS: Mapping[str, str] = {
    **{name: f"plugins: [{{type: {name}-scorer}}]" for name in _ONE_SCORER},
    "aibrix-least-kv-cache": "plugins: [{type: kv-cache-utilization-scorer}]",
    "dynamo": "plugins: [{type: dynamo-cost-scorer}]",
    "kthena": """
plugins:
- {type: kthena-least-request-scorer}
- {type: kthena-least-latency-scorer}
- {type: kthena-prefix-cache-scorer}
- {type: kv-cache-utilization-scorer}
""",
    "smg-cache-aware": _SMG % "smg-cache-aware-scorer",
    "smg-least-load": _SMG % "smg-least-load-scorer",
    "smg-power-of-two": _SMG % "smg-power-of-two-picker",
    "smg-prefix-hash": _SMG % "smg-prefix-hash-scorer",
}
"""Other routers' policies with their defaults; docs/policies.md has a line for each."""
_ALL = (
    # Each block of an engine is an entry of 64 tokens in its index: four times the real cache.
    Policy("llm-d-router", _LLM_D_ROUTER, LLM_D_ROUTER_SCRAPE_SECONDS, as_reported=True),
    Policy("llm-d-router-guide", _GUIDE, LLM_D_ROUTER_SCRAPE_SECONDS),
    *(Policy(name, text, flow=FlowSettings()) for name, text in POLICIES.items()),
    *(Policy(name, text) for name, text in _PEERS.items()),
    Policy("least-ttft-at-once", POLICIES["least-ttft"]),
    OraclePolicy("oracle", POLICIES["least-ttft"]),
)
NAMED: Mapping[str, Policy] = {each.name: each for each in _ALL}
"""Policies by name: llm-d-router as its chart configures it, and as its newest guide does, with
plain LRU indexes; the product's own, with which requests wait as in `epp serve`; other routers';
`least-ttft` that sends each request when it comes; and one that knows the truth."""
ALIASES: Mapping[str, str] = {
    "incumbent": "llm-d-router",
    "incumbent-guide": "llm-d-router-guide",
}
"""Older names of policies, which still work."""
