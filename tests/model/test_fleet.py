"""The fleet: what each event changes, and what candidates say after it."""

import pytest

from epp.model.endpoint import EndpointId, Load, Target
from epp.model.engines import UNKNOWN_CAPACITY
from epp.model.events import (
    Aborted,
    Admitted,
    EndpointRemoved,
    EndpointUpserted,
    Finished,
    FirstToken,
    Listed,
    LoadReported,
    OrcaReported,
    ScrapeFailed,
    Served,
    Unobserved,
)
from epp.model.pods import CLASS_LABEL
from epp.model.prefill import STEP_SECONDS, PrefillModel
from epp.model.request import RequestId, Usage
from tests.model.rig import Rig, predicted
from tests.strategies import endpoint, request, text

LONG = text(1000)


def test_a_fleet_without_endpoints_has_no_candidates():
    rig = Rig(0)
    assert rig.ask(LONG) == {}
    assert (rig.fleet.endpoints, rig.fleet.indexed_blocks, rig.fleet.synced) == ([], 0, False)
    rig.tell(Listed())
    assert rig.fleet.synced


def test_a_cold_fleet_predicts_a_whole_prefill_everywhere():
    for each in Rig().ask(LONG).values():
        assert (each.prompt_tokens, each.cached_tokens, each.matched_blocks) == (1000, 0, 0)
        assert each.total_blocks > 10
        assert each.prefill_seconds == PrefillModel().seconds(1000, 0)
        assert (each.owed_seconds, each.requests, each.busy_share) == (0, 0, 0)


@pytest.mark.parametrize("tokens", [1, 16, 17, 32, 500, 1000, 5000])
def test_a_repeated_prompt_hits_where_it_went(tokens):
    rig = Rig()
    rig.serve("pod-0", "r1", text(tokens))
    assert rig.cached(text(tokens)) == {"pod-0": predicted(tokens), "pod-1": 0}


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
    assert (found.prompt_tokens, found.prefill_seconds, found.owed_seconds) == (0, 0, 0)
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
    rig.tell(EndpointUpserted(endpoint(**fields)))
    assert rig.cached(LONG) == {"pod-0": 0, "pod-1": 0}
    assert rig.owed() == {"pod-0": 0, "pod-1": 0}
    rig.tell(Finished(RequestId("r2")))
    assert rig.fleet.indexed_blocks == 0
    assert {each.id for each in rig.fleet.endpoints} == {"default/pod-0", "default/pod-1"}


def test_removal_takes_the_cache_and_leaves_requests_nothing_to_do():
    rig = Rig()
    rig.send("pod-0", "r1", LONG)
    rig.tell(EndpointRemoved(EndpointId("default/pod-0")))
    assert rig.fleet.indexed_blocks == 0
    assert list(rig.ask(LONG)) == ["pod-1"]
    rig.tell(FirstToken(RequestId("r1")))
    rig.tell(Finished(RequestId("r1"), generated=5))
    rig.add("pod-0", "10.0.0.1")
    assert rig.cached(LONG) == {"pod-1": 0, "pod-0": 0}
    assert rig.fleet._visits == {}


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


def test_a_request_from_before_a_restart_leaves_nothing_behind():
    rig = Rig()
    rig.report("pod-0", started_at=5.0)
    rig.send("pod-0", "r1", LONG)
    rig.report("pod-0", started_at=6.0)
    rig.send("pod-0", "r2", text(500, "b"))
    rig.tell(Finished(RequestId("r1"), Usage(1000, 50, 0)))
    assert rig.cached(LONG)["pod-0"] == 0
    assert rig.cached(text(500, "b"))["pod-0"] == predicted(500)


def test_capacity_is_what_the_engine_says_less_the_null_block():
    rig = Rig()
    assert rig.pod("pod-0").tenants.cache.capacity == UNKNOWN_CAPACITY
    rig.report("pod-0", block_size=16, num_blocks=101)
    assert rig.pod("pod-0").tenants.cache.capacity == 1600
    rig.report("pod-0")
    assert rig.pod("pod-0").tenants.cache.capacity == 1600


def test_a_small_cache_forgets():
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
    rig.tell(OrcaReported(Target("10.0.0.1:8000"), kv_usage=0.7, running=0.0))
    load = rig.ask()["pod-0"].load
    assert (load.waiting, load.running, load.kv_usage, load.block_size) == (3, 0, 0.7, 16)
    assert load.at == rig.now


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


@pytest.mark.parametrize("subset", [("[fd00::1]:8000",), ("fd00::1",)])
def test_a_subset_may_be_ipv6(subset):
    rig = Rig()
    rig.add("six", "fd00::1")
    assert list(rig.ask(subset=subset)) == ["six"]


def test_an_endpoint_that_refuses_is_left_out_at_once():
    rig = Rig()
    rig.tell(ScrapeFailed(EndpointId("default/pod-0"), refused=True))
    assert list(rig.ask()) == ["pod-1"]
    assert [answers for _, _, answers in rig.fleet.loads()] == [False, True]
    rig.report("pod-0")
    assert list(rig.ask()) == ["pod-0", "pod-1"]


def test_silence_is_doubted_after_three_times():
    rig = Rig()
    for _ in range(2):
        rig.tell(ScrapeFailed(EndpointId("default/pod-0"), refused=False))
    rig.report("pod-0")
    for _ in range(2):
        rig.tell(ScrapeFailed(EndpointId("default/pod-0"), refused=False))
        assert list(rig.ask()) == ["pod-0", "pod-1"]
    rig.tell(ScrapeFailed(EndpointId("default/pod-0"), refused=False))
    assert list(rig.ask()) == ["pod-1"]


def test_where_nobody_answers_all_are_tried():
    rig = Rig()
    for name in ("pod-0", "pod-1"):
        rig.tell(ScrapeFailed(EndpointId(f"default/{name}"), refused=True))
    assert list(rig.ask()) == ["pod-0", "pod-1"]


def test_in_a_subset_only_its_own_silence_counts():
    rig = Rig()
    rig.tell(ScrapeFailed(EndpointId("default/pod-0"), refused=True))
    assert list(rig.ask(subset=("10.0.0.1",))) == ["pod-0"]


# Requests.


def test_a_request_is_owed_until_its_first_token():
    rig = Rig()
    rig.send("pod-0", "r1", LONG)
    owed = PrefillModel().seconds(1000, 0)
    assert rig.owed() == {"pod-0": pytest.approx(owed), "pod-1": 0}
    rig.tell(FirstToken(RequestId("r1")))
    assert rig.owed() == {"pod-0": 0, "pod-1": 0}
    assert rig.ask()["pod-0"].requests == 1
    rig.tell(Finished(RequestId("r1")))
    assert rig.ask()["pod-0"].requests == 0


def test_what_is_owed_is_what_was_predicted():
    rig = Rig()
    rig.serve("pod-0", "r1", text(400))
    before = rig.ask(LONG)["pod-0"]
    rig.send("pod-0", "r2", LONG)
    assert rig.owed()["pod-0"] == pytest.approx(before.owed_seconds + before.prefill_seconds)
    assert rig.visit("r2").cached == before.cached_tokens > 0


def test_without_streaming_the_clock_pays():
    rig = Rig()
    rig.send("pod-0", "r1", LONG, stream=False)
    rig.now += 0.01
    assert rig.owed()["pod-0"] == pytest.approx(PrefillModel().seconds(1000, 0) - 0.01)
    rig.now += 1
    assert rig.owed()["pod-0"] == 0
    assert rig.ask()["pod-0"].requests == 1


def test_served_elsewhere_moves_everything():
    rig = Rig()
    rig.serve("pod-0", "r0", text(200))
    rig.send("pod-0", "r1", LONG)
    rig.tell(Served(RequestId("r1"), Target("10.0.0.2:8000")))
    assert rig.cached(LONG) == {"pod-0": rig.cached(text(200) + "x")["pod-0"], "pod-1": 992}
    assert rig.owed() == {"pod-0": 0, "pod-1": pytest.approx(PrefillModel().seconds(1000, 0))}
    rig.tell(Finished(RequestId("r1")))
    assert rig.owed() == {"pod-0": 0, "pod-1": 0}
    assert rig.cached(LONG)["pod-1"] == predicted(1000)


@pytest.mark.parametrize("target", ["10.0.0.1:8000", "192.168.0.1:80"], ids=["as told", "unknown"])
def test_served_as_told_or_who_knows_where_moves_nothing(target):
    rig = Rig()
    rig.send("pod-0", "r1", LONG)
    before = rig.owed()
    rig.tell(Served(RequestId("r1"), Target(target)))
    assert rig.owed() == before
    assert rig.cached(LONG)["pod-0"] == predicted(1000)


def test_a_refused_request_was_never_there():
    rig = Rig()
    rig.serve("pod-0", "r0", text(200))
    blocks = rig.fleet.indexed_blocks
    rig.send("pod-0", "r1", LONG)
    rig.tell(Aborted(RequestId("r1"), refused=True))
    assert rig.fleet.indexed_blocks == blocks
    assert rig.cached(text(200))["pod-0"] == predicted(200)
    assert rig.owed()["pod-0"] == 0


def test_an_aborted_request_was_computed():
    rig = Rig()
    rig.send("pod-0", "r1", LONG)
    rig.tell(Aborted(RequestId("r1"), generated=3))
    assert rig.cached(LONG)["pod-0"] == predicted(1000)
    assert (rig.owed()["pod-0"], rig.ask()["pod-0"].requests) == (0, 0)


@pytest.mark.parametrize(
    "finished",
    [Finished(RequestId("r1"), Usage(800, 300, 0)), Finished(RequestId("r1"), generated=300)],
    ids=["usage", "chunks"],
)
def test_generated_tokens_take_room(finished):
    rig = Rig()
    rig.report("pod-0", block_size=16, num_blocks=101)
    rig.serve("pod-0", "r0", text(600, "old"))
    rig.send("pod-0", "r1", text(800, "new"))
    rig.tell(finished)
    left = rig.cached(text(600, "old"))["pod-0"]
    assert 400 <= left <= 512  # 1600 - 800 - 300


def test_a_request_admitted_twice_is_at_the_second_place_only():
    rig = Rig()
    rig.send("pod-0", "r1", LONG)
    rig.send("pod-1", "r1", LONG)
    rig.send("pod-1", "r1", LONG)
    assert rig.owed()["pod-0"] == 0
    assert rig.cached(LONG) == {"pod-0": 0, "pod-1": predicted(1000)}
    rig.tell(Finished(RequestId("r1")))
    assert rig.owed() == {"pod-0": 0, "pod-1": 0}
    for name in ("pod-0", "pod-1"):
        assert rig.ask()[name].requests == 0
        assert rig.pod(name).tenants.cache.free == UNKNOWN_CAPACITY


def test_a_fleet_that_changed_since_it_was_asked():
    """Slots move between asking and admitting: what was found then is found again."""
    rig = Rig(1)
    rig.serve("pod-0", "r0", LONG)
    asked = request("r1", LONG)
    rig.fleet.candidates(asked, rig.now)
    rig.tell(EndpointRemoved(EndpointId("default/pod-0")))
    rig.add("pod-1", "10.0.0.2")
    rig.add("pod-2", "10.0.0.3")
    rig.tell(Admitted(asked, EndpointId("default/pod-1")))
    assert rig.visit("r1").cached == 0
    asked = request("r2", LONG)
    rig.fleet.candidates(asked, rig.now)
    rig.add("pod-3", "10.0.0.4")
    rig.tell(Admitted(asked, EndpointId("default/pod-3")))
    assert rig.visit("r2").cached == 0


UNKNOWN = [
    EndpointRemoved(EndpointId("default/who")),
    LoadReported(EndpointId("default/who"), Load()),
    ScrapeFailed(EndpointId("default/who"), refused=True),
    OrcaReported(Target("1.2.3.4:5"), kv_usage=1.0),
    Admitted(request("r9", LONG), EndpointId("default/who")),
    Served(RequestId("who"), Target("10.0.0.1:8000")),
    FirstToken(RequestId("who")),
    Finished(RequestId("who"), Usage(1, 2, 3)),
    Aborted(RequestId("who"), refused=True),
    Unobserved(RequestId("who")),
]


@pytest.mark.parametrize("event", UNKNOWN, ids=lambda event: type(event).__name__)
def test_events_about_strangers_change_nothing(event):
    rig = Rig()
    rig.serve("pod-0", "r1", LONG)
    before = (rig.ask(LONG), rig.fleet.loads(), rig.fleet.indexed_blocks)
    rig.tell(event)
    assert (rig.ask(LONG), rig.fleet.loads(), rig.fleet.indexed_blocks) == before
    assert rig.fleet._visits == {}


# What is learned, and what others do.


def test_foreign_queues_are_a_floor():
    rig = Rig()
    rig.report("pod-0", waiting=3)
    price = PrefillModel().seconds(1000, 0)
    assert rig.ask(LONG)["pod-0"].owed_seconds == pytest.approx(3 * price)
    assert rig.ask()["pod-0"].owed_seconds == pytest.approx(3 * STEP_SECONDS)
    rig.send("pod-0", "r1", "x")  # the report is older
    assert rig.ask(LONG)["pod-0"].owed_seconds == pytest.approx(
        3 * price + PrefillModel().seconds(1, 0)
    )


def test_decodes_interfere():
    rig = Rig()
    rig.report("pod-0", running=100)
    found = rig.ask()
    assert found["pod-0"].decode_seconds > found["pod-1"].decode_seconds == 0


def test_the_busy_share_is_averaged_over_ten_seconds():
    rig = Rig(4)
    assert rig.ask()["pod-0"].busy_share == 0
    rig.send("pod-0", "r1", text(200_000))
    assert rig.ask()["pod-0"].busy_share == 0
    rig.now += 10
    assert rig.ask()["pod-0"].busy_share == pytest.approx(0.25 * (1 - 1 / 2.718281828))
    rig.now += 50
    assert rig.ask()["pod-0"].busy_share == pytest.approx(0.25, abs=0.002)
    rig.tell(Finished(RequestId("r1")))
    rig.now += 100
    assert rig.ask()["pod-0"].busy_share == pytest.approx(0, abs=1e-4)


def test_bytes_a_token_are_learned_per_model():
    rig = Rig()
    rig.send("pod-0", "r1", LONG)
    rig.tell(Finished(RequestId("r1"), Usage(2000, 1, 0)))
    assert rig.ask(LONG)["pod-0"].prompt_tokens == 2000
    assert rig.ask(LONG, target_model="other")["pod-0"].prompt_tokens == 1000


@pytest.mark.parametrize(
    ("prompts", "usage"),
    [
        (("a" * 4000, "b" * 4000), Usage(500, 1, 0)),
        (("a" * 4000,), Usage(0, 1, 0)),
        (("a" * 4000,), None),
    ],
    ids=["several prompts", "none reported", "no usage"],
)
def test_bytes_a_token_are_learned_from_clear_cases_only(prompts, usage):
    rig = Rig()
    rig.send("pod-0", "r1", *prompts)
    rig.tell(Finished(RequestId("r1"), usage))
    assert rig.ask(LONG)["pod-0"].prompt_tokens == 1000


def test_token_ids_are_counted_not_estimated():
    rig, ids = Rig(), list(range(1000))
    rig.send("pod-0", "r1", ids)
    rig.tell(Finished(RequestId("r1"), Usage(900, 1, 0)))
    found = rig.ask(ids)["pod-0"]
    assert (found.prompt_tokens, found.cached_tokens) == (1000, predicted(1000))


def slow(rig, name, identity, tokens, seconds):
    rig.send(name, identity, text(tokens, identity))
    rig.now += seconds
    rig.tell(FirstToken(RequestId(identity)))
    rig.tell(Finished(RequestId(identity)))


def test_prefill_is_learned_from_endpoints_that_were_idle():
    rig = Rig()
    for number in range(60):
        slow(rig, "pod-0", f"r{number}", 500 + 50 * number, 0.01 + 4e-4 * (500 + 50 * number))
    assert rig.ask(text(2000, "new"))["pod-1"].prefill_seconds == pytest.approx(0.8, rel=0.2)


def test_short_prompts_and_queued_ones_teach_nothing():
    rig = Rig()
    slow(rig, "pod-0", "short", 60, 9.0)
    rig.send("pod-0", "first", text(500))
    slow(rig, "pod-0", "second", 500, 9.0)
    assert rig.ask(text(100, "new"))["pod-1"].prefill_seconds == PrefillModel().seconds(100, 0)


def test_classes_of_endpoints_learn_apart():
    rig = Rig(0)
    rig.add("h100", "10.0.0.1", labels={CLASS_LABEL: "h100"})
    rig.add("cpu", "10.0.0.2", labels={CLASS_LABEL: "cpu"})
    for number in range(40):
        slow(rig, "cpu", f"r{number}", 500 + 50 * number, 1 + number)
    found = rig.ask(text(1000, "new"))
    assert found["h100"].prefill_seconds == PrefillModel().seconds(1000, 0)
    assert found["cpu"].prefill_seconds > 1
    rig.add("h100", "10.0.0.1", labels={CLASS_LABEL: "cpu"})
    assert rig.ask(text(1000, "new"))["h100"].prefill_seconds > 1


# The line before a full cache.


def full_house():
    """Fill a pod of 1600 tokens with `a` (1000); `b` (900) and `c` (300) wait in line."""
    rig = Rig(1)
    rig.report("pod-0", block_size=16, num_blocks=101)
    for name, tokens in (("a", 1000), ("b", 900), ("c", 300)):
        rig.send("pod-0", name, text(tokens, name))
    return rig


SIZES = {"a": 1000, "b": 900, "c": 300}


def held(rig):
    """Name those that the cache holds blocks of."""
    chains = {n: rig.fleet._ask(request(f"of {n}", text(SIZES[n], n))).chains[0] for n in SIZES}
    return [name for name in SIZES if rig.pod("pod-0").tenants.cache.match(chains[name].hashes)]


def found(rig):
    """Name those that a later request is predicted to find there."""
    return [name for name in SIZES if rig.cached(text(SIZES[name], name))["pod-0"]]


def test_who_does_not_fit_waits_and_so_do_those_behind():
    rig = full_house()
    assert held(rig) == ["a"]
    rig.tell(Finished(RequestId("a")))
    assert set(held(rig)) >= {"b", "c"}


def test_who_waits_will_be_there_by_the_time_that_a_later_request_is_let_in():
    rig = full_house()
    assert found(rig) == ["a", "b", "c"]
    for name in "bc":
        rig.tell(Aborted(RequestId(name), refused=True))
    assert found(rig) == ["a"]


def test_when_the_head_of_the_line_gives_up_the_next_is_let_in():
    rig = full_house()
    rig.tell(Aborted(RequestId("b")))
    assert held(rig) == found(rig) == ["a", "c"]


def test_when_the_pool_turns_out_larger_the_line_is_let_in():
    rig = full_house()
    rig.report("pod-0", block_size=16, num_blocks=1001)
    rig.ask()
    assert held(rig) == ["a", "b", "c"]


def test_waiting_requests_die_with_the_engine():
    rig = full_house()
    rig.report("pod-0", block_size=16, num_blocks=101, started_at=1.0)
    rig.report("pod-0", block_size=16, num_blocks=101, started_at=2.0)
    for name in "abc":
        rig.tell(Aborted(RequestId(name)))
    assert held(rig) == found(rig) == []
    assert rig.pod("pod-0").tenants.cache.free == 1600
