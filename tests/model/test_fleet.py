"""The fleet: what it finds in caches, what becomes of endpoints, and which are candidates."""

import pytest

from epp.model.caches.choice import UNKNOWN_CAPACITY
from epp.model.endpoint import OFFLOAD_LABEL, EndpointId, Target
from epp.model.events import (
    EndpointRemoved,
    EndpointUpserted,
    Listed,
    OrcaReported,
    ScrapeFailed,
    ScrapeFailure,
)
from epp.model.kv_changes import (
    BlocksStored,
    CacheChanged,
    CacheCleared,
    CacheCopied,
    CacheFeedUp,
    EngineHash,
)
from epp.model.learning.prefill import PrefillModel
from epp.model.prompts.hashing import BlockHash
from epp.model.request import RequestId, Usage
from epp.model.request_events import Finished, FirstToken, Served
from tests.model.invariants import check_invariants
from tests.model.rig import LONG, Rig, predicted
from tests.strategies import endpoint, text


def test_a_fleet_without_endpoints_has_no_candidates():
    rig = Rig(0)
    assert rig.ask(LONG) == {}
    assert (rig.fleet.endpoints, rig.fleet.indexed_blocks, rig.fleet.synced) == ([], 0, False)
    rig.apply(Listed())
    assert rig.fleet.synced


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


def test_requests_without_a_prompt_cost_nothing():
    rig = Rig()
    rig.send("pod-0", "r1")
    found = rig.ask()["pod-0"]
    assert (found.prompt_tokens, found.prefill_seconds, found.queued_prefill_seconds) == (0, 0, 0)
    assert found.requests == 1


# Endpoints come, change and go.


def test_an_upsert_of_the_same_engine_keeps_its_cache():
    rig = Rig()
    rig.serve("pod-0", "r1", LONG)
    rig.add("pod-0", "10.0.0.1", labels={"zone": "b"})
    assert rig.cached(LONG)["pod-0"] == predicted(1000)
    assert rig.ask()["pod-0"].endpoint.labels == {"zone": "b"}


@pytest.mark.parametrize(
    "change",
    [{"uid": "another"}, {"address": "10.0.0.77"}, {"port": 9}],
    ids=["uid", "address", "port"],
)
def test_another_engine_under_the_same_name_is_empty(change):
    rig = Rig()
    rig.serve("pod-0", "r1", LONG)
    rig.send("pod-0", "r2", LONG)
    fields = {"name": "pod-0", "address": "10.0.0.1"} | change
    rig.apply(EndpointUpserted(endpoint(**fields)))
    assert rig.cached(LONG) == {"pod-0": 0, "pod-1": 0}
    assert rig.queued_seconds() == {"pod-0": 0, "pod-1": 0}
    rig.apply(Finished(RequestId("r2")))
    assert rig.fleet.indexed_blocks == 0
    assert {each.id for each in rig.fleet.endpoints} == {"default/pod-0", "default/pod-1"}


def test_removal_takes_the_cache_and_leaves_requests_nothing_to_do():
    rig = Rig()
    rig.send("pod-0", "r1", LONG)
    rig.apply(EndpointRemoved(EndpointId("default/pod-0")))
    assert rig.fleet.indexed_blocks == 0
    assert list(rig.ask(LONG)) == ["pod-1"]
    rig.apply(FirstToken(RequestId("r1")))
    rig.apply(Finished(RequestId("r1"), generated=5))
    rig.add("pod-0", "10.0.0.1")
    assert rig.cached(LONG) == {"pod-1": 0, "pod-0": 0}
    assert rig.fleet.in_flight == {}


@pytest.mark.parametrize(
    ("starts", "kept"),
    [
        ((5.0, 5.0), True),
        ((None, 5.0), True),
        ((5.0, None), True),
        ((5.0, 6.0), False),
        ((6.0, 5.0), False),
        ((5.0, None, 6.0), False),
        ((5.0, None, 5.0), True),
    ],
)
def test_another_start_time_is_an_empty_cache(starts, kept):
    rig = Rig()
    rig.report("pod-0", started_at=starts[0])
    rig.serve("pod-0", "r1", LONG)
    for started_at in starts[1:]:
        rig.report("pod-0", started_at=started_at)
    assert rig.cached(LONG)["pod-0"] == (predicted(1000) if kept else 0)


def test_an_engine_that_says_that_it_runs_on_has_not_restarted():
    rig = Rig()
    rig.report("pod-0", started_at=5.0, block_size=16, num_blocks=100_001)
    for number, cached in enumerate((0, predicted(1000), 0, 0, 0, 0)):
        rig.send("pod-0", f"r{number}", LONG)
        rig.apply(Finished(RequestId(f"r{number}"), Usage(1000, 1, cached)))
    assert rig.pod("pod-0").scheduler.generation == 0


LARGE = {"block_size": 128, "num_blocks": 1001}
IDS = list(range(1285))


def join(rig):
    rig.add("new", "10.0.0.8")
    rig.add("silent", "10.0.0.9")
    rig.report("new", **LARGE)


def leave(rig):
    join(rig)
    rig.apply(EndpointRemoved(EndpointId("default/silent")))


def leave_with_small_blocks(rig):
    rig.add("small", "10.0.0.8")
    rig.apply(EndpointRemoved(EndpointId("default/small")))


@pytest.mark.parametrize("happens", [join, leave, leave_with_small_blocks])
@pytest.mark.parametrize("token_block", [None, 16, 64, 128])
def test_engines_that_come_and_go_leave_the_cut_of_token_ids(token_block, happens):
    rig = Rig(token_block=token_block)
    for name in ("pod-0", "pod-1"):
        rig.report(name, **LARGE)
    rig.serve("pod-0", "r1", IDS)
    assert rig.quote("r2", IDS).chains[0].ends[0] == (token_block or 128)
    happens(rig)
    assert rig.cached(IDS)["pod-0"] == 1280


@pytest.mark.parametrize(
    ("token_block", "blocks", "cut"),
    [
        (None, (128,), 128),
        (None, (128, 64), 64),
        (None, (64, 128), 64),
        (None, (8, 16), 16),
        (64, (128, 64), 64),
        (64, (128, 32), 32),
        (16, (528, 32), 16),
        (16, (24, 24), 24),
    ],
)
def test_token_ids_are_cut_so_that_all_engines_blocks_end_there(token_block, blocks, cut):
    rig = Rig(2, token_block=token_block)
    for number, size in enumerate(blocks):
        rig.report(f"pod-{number}", block_size=size, num_blocks=101)
    assert rig.quote("r1", IDS).chains[0].ends[0] == cut


def test_what_an_engine_stores_is_followed_in_the_cut_of_token_ids():
    """Its first event comes before its first page, by which they are cut anew."""
    rig, pod = Rig(1, token_block=64), EndpointId("default/pod-0")

    def store(first):
        ids = list(range(first, first + 320))
        data = b"".join(each.to_bytes(4, "little") for each in ids)
        hashes = [EngineHash(first + each) for each in range(10)]
        rig.apply(CacheChanged(pod, [BlocksStored(hashes, None, data, 32, model="m")]))
        return [*ids, 1]

    rig.apply(CacheFeedUp(pod, complete=True))
    store(10**6)
    rig.report("pod-0", block_size=32, num_blocks=1001)
    stored = [store(10**5 * each) for each in range(1, 4)]
    assert [rig.cached(each, target_model="m")["pod-0"] for each in stored] == [320] * 3
    (stats,) = rig.fleet.cache_stats()
    assert stats.filled == 3 * 320
    check_invariants(rig.fleet)


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


def test_a_request_from_before_a_restart_leaves_nothing_behind():
    rig = Rig()
    rig.report("pod-0", started_at=5.0)
    rig.send("pod-0", "r1", LONG)
    rig.report("pod-0", started_at=6.0)
    rig.send("pod-0", "r2", text(500, "b"))
    rig.apply(Finished(RequestId("r1"), Usage(1000, 50, 0)))
    assert rig.cached(LONG)["pod-0"] == 0
    assert rig.cached(text(500, "b"))["pod-0"] == predicted(500)


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


def test_an_orca_report_changes_what_it_names():
    rig = Rig()
    rig.report("pod-0", waiting=3, running=4, kv_usage=0.5, block_size=16, num_blocks=9)
    rig.send("pod-0", "r1", LONG)
    rig.apply(OrcaReported(RequestId("r1"), Target("10.0.0.1:8000"), kv_usage=0.7, running=0.0))
    load = rig.ask()["pod-0"].load
    assert (load.waiting, load.running, load.kv_usage, load.block_size) == (3, 0, 0.7, 16)
    assert load.at == rig.now


def test_of_several_ranks_an_orca_report_is_that_of_the_rank_that_served():
    rig = Rig(0)
    for server in (1, 2):
        for rank in range(4):
            rig.add(f"pod-{server}-{rank}", f"10.0.0.{server}", rank=rank)
    for rank in range(4):
        rig.send(f"pod-1-{rank}", f"r{rank}", LONG)
    rig.apply(Served(RequestId("r1"), Target("10.0.0.1:8000")))
    rig.apply(Served(RequestId("r2"), Target("10.0.0.2:8000")))
    reports = [("r0", 1, 5.0), ("r1", 1, 6.0), ("r2", 2, 7.0), ("r3", 3, 8.0)]
    for identity, server, waiting in reports:
        target = Target(f"10.0.0.{server}:8000")
        rig.apply(OrcaReported(RequestId(identity), target, waiting=waiting))
    found = {endpoint.name: load.waiting for endpoint, load, _ in rig.fleet.loads()}
    # What a stranger at 10.0.0.3 served says nothing of rank 3.
    seen = {"pod-1-0": 5.0, "pod-1-1": 6.0, "pod-2-2": 7.0}
    assert {name: waiting for name, waiting in found.items() if waiting} == seen


def test_where_no_endpoint_has_the_rank_any_at_the_target_has_served():
    rig = Rig(1)
    rig.add("ranked", "10.0.0.9", rank=3)
    rig.send("ranked", "r1", LONG)
    rig.apply(Served(RequestId("r1"), Target("10.0.0.1:8000")))
    assert rig.in_flight("r1").pod is rig.pod("pod-0")


# Who may be picked.


@pytest.mark.parametrize(
    ("subset", "names"),
    [
        (None, ["pod-0", "pod-1", "pod-2"]),
        (("10.0.0.2:8000",), ["pod-1"]),
        (("10.0.0.3", "10.0.0.1:8000"), ["pod-0", "pod-2"]),
        (("10.0.0.2:9",), []),
        (("10.0.0.20",), []),
        (("[fd00::1]:8000",), []),
        ((), []),
    ],
)
def test_a_subset_names_addresses_or_targets(subset, names):
    assert list(Rig(3).ask(subset=subset)) == names


@pytest.mark.parametrize(
    "subset",
    [("[fd00::1]:8000",), ("fd00::1",), ("[FD00:0:0::1]:8000",), ("fd00:0:0:0:0:0:0:1", "")],
)
def test_a_subset_may_be_ipv6(subset):
    rig = Rig()
    rig.add("six", "fd00::1")
    assert list(rig.ask(subset=subset)) == ["six"]


def test_an_endpoint_that_refuses_is_left_out_at_once():
    rig = Rig()
    rig.apply(ScrapeFailed(EndpointId("default/pod-0"), ScrapeFailure.REFUSED))
    assert list(rig.ask()) == ["pod-1"]
    assert [answers for _, _, answers in rig.fleet.loads()] == [False, True]
    rig.report("pod-0")
    assert list(rig.ask()) == ["pod-0", "pod-1"]


def test_an_endpoint_is_unreachable_after_three_connections_that_broke():
    rig = Rig()
    for _ in range(2):
        rig.apply(ScrapeFailed(EndpointId("default/pod-0"), ScrapeFailure.BROKEN))
    rig.report("pod-0")
    for _ in range(2):
        rig.apply(ScrapeFailed(EndpointId("default/pod-0"), ScrapeFailure.BROKEN))
        assert list(rig.ask()) == ["pod-0", "pod-1"]
    rig.apply(ScrapeFailed(EndpointId("default/pod-0"), ScrapeFailure.BROKEN))
    assert list(rig.ask()) == ["pod-1"]


@pytest.mark.parametrize("reason", [ScrapeFailure.LATE, ScrapeFailure.NO_PAGE])
def test_a_page_that_is_late_or_missing_says_nothing_of_its_endpoint(reason):
    rig = Rig(10)
    for name in list(rig.ask())[1:]:
        rig.report(name, waiting=3, running=4)
        for _ in range(20):
            rig.apply(ScrapeFailed(EndpointId(f"default/{name}"), reason))
            rig.now += 1
    asked = rig.ask()
    assert len(asked) == 10
    assert {each.load.waiting for each in list(asked.values())[1:]} == {3}


def test_what_answers_is_there_whatever_it_answers():
    rig = Rig()
    for reason in (ScrapeFailure.REFUSED, *[ScrapeFailure.BROKEN] * 3):
        rig.apply(ScrapeFailed(EndpointId("default/pod-0"), reason))
    rig.apply(ScrapeFailed(EndpointId("default/pod-0"), ScrapeFailure.LATE))
    assert list(rig.ask()) == ["pod-1"]
    rig.apply(ScrapeFailed(EndpointId("default/pod-0"), ScrapeFailure.NO_PAGE))
    assert list(rig.ask()) == ["pod-0", "pod-1"]


def test_where_no_endpoint_answers_all_are_eligible():
    rig = Rig()
    for name in ("pod-0", "pod-1"):
        rig.apply(ScrapeFailed(EndpointId(f"default/{name}"), ScrapeFailure.REFUSED))
    assert list(rig.ask()) == ["pod-0", "pod-1"]


def test_an_endpoint_that_sleeps_is_left_out_until_it_wakes():
    rig = Rig()
    rig.report("pod-0", awake=False)
    assert list(rig.ask()) == ["pod-1"]
    assert list(rig.ask(subset=("10.0.0.1",))) == ["pod-0"]
    rig.report("pod-1", awake=False)
    assert list(rig.ask()) == ["pod-0", "pod-1"]
    rig.report("pod-0")
    assert list(rig.ask()) == ["pod-0"]


def test_an_engine_that_sleeps_without_its_weights_has_an_empty_cache():
    rig = Rig()
    for name, identity in (("pod-0", "r1"), ("pod-1", "r2")):
        rig.serve(name, identity, LONG)
    rig.report("pod-0", awake=False, emptied=True)
    rig.report("pod-1", awake=False)  # a pause, which keeps the cache
    for name in ("pod-0", "pod-1"):
        rig.report(name)
    found = rig.ask(LONG)
    assert found["pod-0"].cached_tokens == 0
    assert found["pod-1"].cached_tokens == predicted(1000)


def test_in_a_subset_only_its_own_silence_counts():
    rig = Rig()
    rig.apply(ScrapeFailed(EndpointId("default/pod-0"), ScrapeFailure.REFUSED))
    assert list(rig.ask(subset=("10.0.0.1",))) == ["pod-0"]
