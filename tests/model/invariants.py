"""What always holds of a fleet and its parts: their figures against what they are made of."""

from collections import Counter, defaultdict
from itertools import chain
from math import isclose

from cachetools import Cache

from epp.model.caches import radix_tree
from epp.model.caches.contract import lease_of
from epp.model.caches.offload import TieredLease
from epp.model.caches.sglang import RadixLease
from epp.model.caches.whole_prompt import Entry
from epp.model.pods import engine_scheduler


def check(**conditions):
    """Raise `AssertionError` with the names of the conditions that are false, if any is."""
    false = [name for name, holds in conditions.items() if not holds]
    assert not false, ", ".join(false)


def scheduled(scheduler):
    """The number of requests that an engine's scheduler has, running and waiting."""
    return len(scheduler._running) + len(scheduler.waiting)


def check_invariants(part, held=()):
    """Assert that a fleet, or a part of one, agrees with itself.

    `held` are all leases of a cache that are not released. A compiled block pool shows no books.
    """
    name = type(part).__name__  # a compiled class and that of its source have the same one
    if name in _CACHES:
        _CACHES[name](part, list(held))
    else:
        _OTHERS[name](part)


# The fleet.


def _fleet(fleet):
    """The fleet, its endpoints, their caches and the index agree."""
    parts = [part for each in fleet.in_flight.values() for part in each.parts]
    there = Counter([id(each.pod) for each in parts])
    coming = defaultdict[int, float](float)
    for each in parts:
        coming[id(each.pod)] += each.coming
    pods, index = list(fleet.pods.values()), fleet.pods._index
    held = [set(pod.scheduler._found()) for pod in pods]
    holders = {each: index.match([each]) for each in set().union(*held)}
    for pod, blocks in zip(pods, held, strict=True):
        check_invariants(pod.scheduler)
        found = {each for each, depths in holders.items() if depths[pod.slot]}
        check(
            index_has_the_cache=found == blocks,
            ledger_has_those_in_flight=pod.ledger.requests == there[id(pod)],
            expects_what_they_do=isclose(pod.growth.total, coming[id(pod)], abs_tol=0.1),
        )
    check(
        slots_differ=len({pod.slot for pod in pods}) == len(pods),
        index_has_no_others=len(index) == len(holders),
        unobserved_are_in_flight=fleet.in_flight.keys() >= fleet._unobserved._requests.keys(),
    )


def _scheduler(scheduler):
    """Waiting and running prompts, what they were promised, and the cache agree."""
    most = engine_scheduler._MAX_BLOCKS
    waiting = Counter([each for one in scheduler.waiting for each in one.chain.hashes[:most]])
    promised, once = scheduler._promised, list(waiting)
    again = list((waiting - Counter(once)).elements())
    left, gone = list(promised.remove(again)), list(promised.remove(once))
    as_often = (left, sorted(gone), len(promised)) == ([], sorted(once), 0)
    promised.add([*once, *again])
    held = [each.lease for each in scheduler._running if each.lease is not None]
    check(
        promised_blocks=as_often,
        waiting_hold_nothing=all(each.lease is None for each in scheduler.waiting),
        running_hold_leases=len(held) == len(scheduler._running),
    )
    check_invariants(scheduler.cache, held)
    if scheduler.reported is not None:
        check_invariants(scheduler.reported)


# Caches.


def _block_pool(pool, held):
    if not hasattr(pool, "_blocks"):
        return
    leases = [pool._own(lease) for lease in held]
    holders = [block for each in leases for block in (*each.blocks, *each.unhashed_blocks)]
    used, queued = set(holders), list(pool._blocks.queue)
    cached = {block for copies in pool._blocks.cached.values() for block in copies}
    in_use = sum(block.size for block in used) + sum(lease.reserved_tokens for lease in held)
    queued_tokens = sum(block.size for block in queued)
    check(
        references=sum(block.ref_cnt for block in used) == len(holders),
        free_are_unused=not any(block.ref_cnt for block in queued),
        queued_tokens=pool._blocks.queue.tokens == queued_tokens,
        count=pool._blocks.count == len(used) + len(queued),
        found=cached == {each for each in (*used, *queued) if each.block_hash is not None},
        free=pool.free == pool.capacity - in_use,
        queued_fits=queued_tokens <= max(0, pool.capacity - in_use),
    )


def _radix_cache(cache, held):
    running = [
        each for each in (lease_of(RadixLease, lease) for lease in held) if each.node is not None
    ]
    _radix_tree(cache._tree)
    check(
        running=cache._running == len(running),
        private=cache._private == sum(lease.reserved_tokens for lease in running),
    )


def _radix_tree(tree):
    """Nodes, sums and the eviction order agree."""
    nodes, seen = [*tree.root.children], 0
    while seen < len(nodes):
        nodes += nodes[seen].children
        seen += 1
    every = (tree.root, *nodes)
    unlocked = [node for node in nodes if not node.lock_ref]
    leaves = {node for node in unlocked if not node.children}
    check(
        owners=tree.owners == {key: node for node in nodes for key in node.keys},
        parents=all(each.parent is node for node in every for each in node.children),
        node_tokens=all(node.keys and node.tokens == sum(node.sizes) for node in nodes),
        locks_reach_up=all(
            node.lock_ref >= sum(each.lock_ref for each in node.children) for node in nodes
        ),
        tokens=tree.tokens == sum(node.tokens for node in nodes),
        evictable_size=tree.evictable_size == sum(node.tokens for node in unlocked),
        orphans=tree.orphans == sum(node.orphan for node in nodes),
        unhashed=tree.unhashed == sum(key < 0 for key in tree.owners),
        leaves_ranked=leaves == {node for node in nodes if node.heap_entry is not None},
        leaves_in_heap=leaves <= {entry[-1] for entry in tree._heap},
        few_stale_entries=len(tree._heap) <= 2 * len(tree.owners) + radix_tree._SLACK,
    )


def _whole_prompts(cache, held):
    running = [entry for entry in (lease_of(Entry, lease) for lease in held) if not entry.finished]
    # The base class's access, which does not make an entry recently used.
    finished = [Cache.__getitem__(cache._entries, number) for number in cache._entries]
    pairs = {(block, each.number) for each in (*running, *finished) for block in each.hashes}
    check(
        running_tokens=cache._running_tokens
        == sum(each.tokens + each.reserved_tokens for each in running),
        finished_have_content=all(
            each.finished and (each.hashes or each.unhashed) for each in finished
        ),
        numbers=cache._entries.keys() == {each.number for each in finished},
        holders=pairs
        == {(block, number) for block in cache._holders for number in cache._holders[block]},
        no_empty_holder=all(cache._holders.values()),
    )


def _plain_lru(cache, held):
    check(
        counted_by_entry=cache._holders == Counter(chain.from_iterable(cache._entries.values())),
        leases_hold_nothing=not any(lease.tokens or lease.reserved_tokens for lease in held),
    )


def _two_tiers(cache, held):
    """The second tier fits, and leases have no more hits than blocks; the first has its own."""
    cache._follow_first()
    _second_tier(cache.offload_tier)
    for lease in held:
        check(loaded_is_cached=len(lease_of(TieredLease, lease).loaded) <= lease.cached)


def _second_tier(tier):
    check(
        used=tier.used == sum(tier._sizes.values()),
        fits=tier.used <= max(0, tier.capacity),
        alone=tier.alone == {each for each in tier._sizes if not tier._first.match((each,))},
    )


def _reported(reported):
    """The engine holds the blocks aside, and the cache does not."""
    check(
        aside_is_held=all(each in reported._held for each in reported.aside),
        aside_is_not_cached=reported.aside.keys().isdisjoint(reported.cache.hashes()),
    )


_CACHES = {
    "BlockPool": _block_pool,
    "RadixCache": _radix_cache,
    "WholePromptCache": _whole_prompts,
    "PlainLru": _plain_lru,
    "OffloadedCache": _two_tiers,
}
_OTHERS = {"ReportedBlocks": _reported, "EngineScheduler": _scheduler, "Fleet": _fleet}
