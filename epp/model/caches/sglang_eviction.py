"""The eviction strategies of SGLang's radix cache: a rank for each node, the lowest goes first.

Mirrors SGLang 0.5.23 `srt/mem_cache/evict_policy.py` under the values of its flag
`--radix-eviction-policy`. `tlru` needs thresholds that no endpoint reports, and is not here.
"""

from collections.abc import Mapping

from epp.model.caches.radix_tree import Strategy

_PROTECTED_HITS = 2  # SGLang SLRUStrategy: protected_threshold

DEFAULT_STRATEGY = "lru"
STRATEGIES: Mapping[str, Strategy] = {
    "lru": lambda node: (node.last_access_time,),
    "lfu": lambda node: (node.hit_count, node.last_access_time),
    "fifo": lambda node: (node.creation_time,),
    "mru": lambda node: (-node.last_access_time,),
    "filo": lambda node: (-node.creation_time,),
    "priority": lambda node: (node.priority, node.last_access_time),
    "slru": lambda node: (node.hit_count >= _PROTECTED_HITS, node.last_access_time),
}
