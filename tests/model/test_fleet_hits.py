"""The fleet: what it finds in caches, and what they forget."""

import pytest

from epp.model.caches.choice import UNKNOWN_CAPACITY
from epp.model.endpoint import OFFLOAD_LABEL, EndpointId
from epp.model.events import EndpointRemoved
from epp.model.kv_changes import (
    BlocksRemoved,
    BlocksStored,
    CacheChanged,
    CacheCleared,
    CacheCopied,
    CacheFeedLost,
    EngineHash,
)
from epp.model.learning.prefill import PrefillModel
from epp.model.prompts.hashing import BlockHash
from epp.model.request import RequestId, Usage
from epp.model.request_events import Finished, FirstToken
from tests.model.invariants import check_invariants
from tests.model.rig import LONG, Rig, predicted
from tests.strategies import text


def test_a_cold_fleet_predicts_a_whole_prefill_everywhere():
    for each in Rig().ask(LONG).values():
        assert (each.prompt_tokens, each.cached_tokens, each.matched_blocks) == (1000, 0, 0)
        assert each.total_blocks > 10
        assert each.prefill_seconds == PrefillModel().seconds(1000, 0)
        assert (each.queued_prefill_seconds, each.requests, each.busy_share) == (0, 0, 0)


@pytest.mark.parametrize("tokens", [1, 16, 17, 32, 500, 1000, 5000])
def test_a_repeated_prompt_hits_where_it_went(tokens):
    rig = Rig()
    rig.serve("pod-0", "r1", text(tokens))
    assert rig.cached(text(tokens)) == {"pod-0": predicted(tokens), "pod-1": 0}


def test_what_an_index_has_no_room_for_is_forgotten_oldest_first():
    rig = Rig(1, index_bytes=10_000)
    prompts = [f"{number} {LONG}" for number in range(20)]
    for number, prompt in enumerate(prompts):
        rig.serve("pod-0", f"r{number}", prompt)
    found = [rig.cached(prompt)["pod-0"] for prompt in prompts]
    assert found[-1] > 0
    assert found == sorted(found)
    assert found[0] == 0
    check_invariants(rig.fleet)


@pytest.mark.parametrize("blocks", [25, 1000])
def test_what_others_say_of_caches_is_forgotten_evenly_if_the_index_has_no_room_for_it(blocks):
    names = [f"pod-{number}" for number in range(4)]
    copies = [
        CacheCopied(
            EndpointId(f"default/{name}"),
            [BlockHash(number << 40 | block) for block in range(blocks)],
            [16] * blocks,
            closed=True,
        )
        for number, name in enumerate(names)
    ]
    whole = Rig(4)
    for each in copies:
        whole.apply(each)
    rig = Rig(4, index_bytes=whole.fleet._index.used_bytes // 2)
    for each in copies:
        rig.apply(each)
    held = [rig.pod(name).scheduler.blocks for name in names]
    assert rig.fleet._index.excess == 0
    assert max(held) - min(held) <= max(1, blocks // 16)
    check_invariants(rig.fleet)


def test_what_requests_hold_at_the_fullest_keeps_the_index_from_no_other():
    rig = Rig(2, index_bytes=1)
    for number in range(20):
        rig.send("pod-0", f"held {number}", text(500, f"held {number}"))
    for number in range(20):
        rig.serve("pod-1", f"over {number}", text(300, f"over {number}"))
    assert rig.pod("pod-0").scheduler.blocks > 10 * rig.pod("pod-1").scheduler.blocks
    check_invariants(rig.fleet)


def test_blocks_of_responses_that_go_first_keep_no_others_in_the_index():
    rig = Rig(1)
    for number in range(20):
        rig.send("pod-0", f"{number}", text(500, f"{number}"))
        rig.apply(Finished(RequestId(f"{number}"), Usage(500, 200, 0)))
    used = rig.fleet._index.used_bytes
    small = Rig(1, index_bytes=used // 4)
    for number in range(20):
        small.send("pod-0", f"{number}", text(500, f"{number}"))
    assert small.fleet._index.excess > 0  # requests hold them
    for number in range(20):
        small.apply(Finished(RequestId(f"{number}"), Usage(500, 200, 0)))
    small.serve("pod-0", "another", text(10))
    assert small.fleet._index.excess == 0
    check_invariants(small.fleet)


def test_a_longer_prompt_hits_the_blocks_that_it_shares():
    rig = Rig()
    rig.serve("pod-1", "r1", text(1000))
    more = rig.ask(text(1000) + "and then something else" * 20)["pod-1"]
    assert 900 < more.cached_tokens <= 1000
    assert more.matched_blocks < more.total_blocks
    assert rig.ask("other" + text(1000))["pod-1"].cached_tokens == 0


def test_hits_are_whole_blocks_of_the_engine():
    rig = Rig()
    rig.report("pod-0", block_size=128, num_blocks=1000)
    rig.serve("pod-0", "r1", LONG)
    assert rig.cached(LONG)["pod-0"] == predicted(1000, 128)
    assert predicted(1000, 128) % 128 == 0


def test_several_prompts_add_up():
    rig = Rig()
    rig.serve("pod-0", "r1", text(500, "a"), text(300, "b"))
    found = rig.ask(text(500, "a"), text(300, "b"), text(100, "c"))["pod-0"]
    assert found.cached_tokens == predicted(500) + predicted(300)
    assert found.prompt_tokens == 900


@pytest.mark.parametrize("other", [{"target_model": "lora"}, {"cache_salt": "mine"}])
def test_what_must_not_be_shared_is_not(other):
    rig = Rig()
    rig.serve("pod-0", "r1", LONG)
    assert rig.cached(LONG, **other) == {"pod-0": 0, "pod-1": 0}
    assert rig.cached(LONG, model="an alias")["pod-0"] > 0


@pytest.mark.parametrize("running", [0, 100])
def test_requests_without_a_prompt_cost_nothing(running):
    rig = Rig()
    rig.report("pod-0", running=running)
    rig.send("pod-0", "r1")
    found = rig.ask()["pod-0"]
    assert (found.prompt_tokens, found.prefill_seconds, found.queued_prefill_seconds) == (0, 0, 0)
    assert found.requests == 1


OFFLOADING = {OFFLOAD_LABEL: "4000"}


@pytest.mark.parametrize("labels", [{}, OFFLOADING])
def test_a_cache_that_was_cleared_holds_only_what_requests_hold(labels):
    rig = Rig(0)
    for number in (0, 1):
        rig.add(f"pod-{number}", f"10.0.0.{number + 1}", labels=labels)
        rig.report(f"pod-{number}", block_size=16, num_blocks=1000, engine="vllm")
        rig.serve(f"pod-{number}", f"over-{number}", LONG)
    rig.send("pod-0", "runs", text(500, "b"))
    rig.apply(FirstToken(RequestId("runs")))
    before = rig.pod("pod-0").scheduler.held
    rig.apply(CacheCleared(EndpointId("default/pod-0")))
    assert rig.cached(LONG) == {"pod-0": 0, "pod-1": predicted(1000)}
    assert rig.cached(text(500, "b"))["pod-0"] == predicted(500)
    assert rig.pod("pod-0").scheduler.held == before > 0
    rig.serve("pod-0", "after", LONG)
    assert rig.cached(LONG)["pod-0"] == predicted(1000)
    check_invariants(rig.fleet)


def test_an_engine_whose_kv_events_are_followed_says_itself_what_it_holds():
    rig, pod = Rig(1, token_block=64), EndpointId("default/pod-0")
    ids = [*range(320), 1]
    data = b"".join(each.to_bytes(4, "little") for each in ids[:320])
    hashes = [EngineHash(each) for each in range(20)]
    rig.report("pod-0", block_size=16, num_blocks=101)
    rig.apply(CacheChanged(pod, [BlocksStored(hashes, None, data, 16, model="m")]))
    rig.apply(CacheCleared(pod))
    assert rig.cached(ids, target_model="m")["pod-0"] == 320


def test_counts_of_kv_events_are_of_all_endpoints_that_there_were():
    rig = Rig(2, token_block=16)
    stored = BlocksStored([EngineHash(1), EngineHash(2)], None, bytes(128), 16, model="m")
    for number in (0, 1):
        pod = EndpointId(f"default/pod-{number}")
        rig.apply(CacheChanged(pod, [stored, BlocksRemoved([EngineHash(2)])]))
        rig.apply(CacheFeedLost(pod, "gone"))
        rig.apply(CacheChanged(pod, [stored]))
        rig.apply(EndpointRemoved(pod))
    counts = rig.fleet.pods.kv_events
    assert (counts.stored, counts.removed) == (8, 2)


def test_late_responses_of_an_engine_that_is_gone_change_no_cache_but_its_own():
    """They show that it had restarted before its endpoint was removed."""
    rig = Rig(2)
    for cached in (0, predicted(1000)):
        rig.send("pod-0", "r1", LONG)
        rig.apply(Finished(RequestId("r1"), Usage(1000, 1, cached)))
    late = [f"late {number}" for number in range(4)]
    for identity in late:
        rig.send("pod-0", identity, LONG)
    rig.apply(EndpointRemoved(EndpointId("default/pod-0")))
    rig.serve("pod-1", "r1", LONG)
    for identity in late:
        rig.apply(Finished(RequestId(identity), Usage(1000, 1, 0)))
    assert rig.cached(LONG) == {"pod-1": predicted(1000)}
    check_invariants(rig.fleet)


def test_capacity_is_what_the_engine_says_less_the_null_block():
    rig = Rig()
    assert rig.pod("pod-0").scheduler.cache.capacity == UNKNOWN_CAPACITY
    rig.report("pod-0", block_size=16, num_blocks=101)
    assert rig.pod("pod-0").scheduler.cache.capacity == 1600
    rig.report("pod-0")
    assert rig.pod("pod-0").scheduler.cache.capacity == 1600


def test_a_small_cache_evicts():
    rig = Rig()
    rig.report("pod-0", block_size=16, num_blocks=76)
    for number in range(3):
        rig.serve("pod-0", f"r{number}", text(500, f"{number}"))
    assert rig.cached(text(500, "2"))["pod-0"] == predicted(500)
    assert rig.cached(text(500, "0"))["pod-0"] < 200
    rig.report("pod-0", block_size=16, num_blocks=5)
    assert rig.cached(text(500, "2"))["pod-0"] < predicted(500)
