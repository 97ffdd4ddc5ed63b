"""The fleet: what each event of a request changes, and who waits before a full cache."""

from array import array

import pytest

from epp.model.caches.choice import UNKNOWN_CAPACITY
from epp.model.endpoint import EndpointId, Load, Target
from epp.model.events import (
    EndpointRemoved,
    LoadReported,
    OrcaReported,
    ScrapeFailed,
    ScrapeFailure,
)
from epp.model.kv_changes import BlocksStored, CacheChanged, CacheFeedUp, EngineHash
from epp.model.learning.prefill import PrefillModel
from epp.model.request import RequestId, Usage
from epp.model.request_events import Aborted, Admitted, Finished, FirstToken, Served, Unobserved
from epp.values import replaced
from tests.model.invariants import check_invariants
from tests.model.rig import LONG, Rig, predicted
from tests.strategies import Number, text


def test_prefill_is_queued_until_the_first_token():
    rig = Rig()
    rig.send("pod-0", "r1", LONG)
    owed = PrefillModel().seconds(1000, 0)
    assert rig.queued_seconds() == {"pod-0": pytest.approx(owed), "pod-1": 0}
    rig.apply(FirstToken(RequestId("r1")))
    assert rig.queued_seconds() == {"pod-0": 0, "pod-1": 0}
    assert rig.ask()["pod-0"].requests == 1
    rig.apply(Finished(RequestId("r1")))
    assert rig.ask()["pod-0"].requests == 0


def test_the_queued_prefill_is_what_was_predicted():
    rig = Rig()
    rig.serve("pod-0", "r1", text(400))
    before = rig.ask(LONG)["pod-0"]
    rig.send("pod-0", "r2", LONG)
    assert rig.queued_seconds()["pod-0"] == pytest.approx(
        before.queued_prefill_seconds + before.prefill_seconds
    )
    assert rig.in_flight("r2").cached == before.cached_tokens > 0


def test_without_streaming_the_clock_ends_the_prefill():
    rig = Rig()
    rig.send("pod-0", "r1", LONG, stream=False)
    rig.now += 0.01
    assert rig.queued_seconds()["pod-0"] == pytest.approx(PrefillModel().seconds(1000, 0) - 0.01)
    rig.now += 1
    assert rig.queued_seconds()["pod-0"] == 0
    assert rig.ask()["pod-0"].requests == 1


def test_served_elsewhere_moves_everything():
    rig = Rig()
    rig.serve("pod-0", "r0", text(200))
    rig.send("pod-0", "r1", LONG)
    rig.apply(Served(RequestId("r1"), Target("10.0.0.2:8000")))
    assert rig.cached(LONG) == {"pod-0": rig.cached(text(200) + "x")["pod-0"], "pod-1": 992}
    assert rig.queued_seconds() == {
        "pod-0": 0,
        "pod-1": pytest.approx(PrefillModel().seconds(1000, 0)),
    }
    rig.apply(Finished(RequestId("r1")))
    assert rig.queued_seconds() == {"pod-0": 0, "pod-1": 0}
    assert rig.cached(LONG)["pod-1"] == predicted(1000)


def paces(rig):
    paces = [pod.pace for pod in rig.fleet.pods.values()]
    return [(each.prefill_slowness.value, each.of_class.prefill.seconds(1000, 0)) for each in paces]


@pytest.mark.parametrize("prefill", [None, EndpointId("default/pod-2")])
def test_no_endpoint_is_as_slow_or_as_fast_as_the_one_before_it(prefill):
    rig = Rig(3)
    for name in map(RequestId, "abcdefghijklmnopqrst"):  # until the speed of their class is known
        rig.now += 100
        rig.send("pod-0", name, text(1000, seed=name))
        rig.now += 0.05
        rig.apply(FirstToken(name))
        rig.apply(Finished(name))
    before = paces(rig)
    for number in range(20):
        name, words = RequestId(f"r{number}"), text(1000, seed=f"{number} ")
        rig.now += 100
        rig.apply(Admitted(rig.quote(name, words), EndpointId("default/pod-0"), prefill))
        rig.now += 5
        rig.apply(Served(name, Target("10.0.0.2:8000"), retried=True))
        rig.now += 0.001
        rig.apply(FirstToken(name))
        rig.now += 1
        rig.apply(Finished(name, Usage(1000, 50)))
    assert paces(rig) == before


@pytest.mark.parametrize("target", ["10.0.0.1:8000", "192.168.0.1:80"], ids=["as told", "unknown"])
def test_served_as_picked_or_at_an_unknown_target_moves_nothing(target):
    rig = Rig()
    rig.send("pod-0", "r1", LONG)
    before = rig.queued_seconds()
    rig.apply(Served(RequestId("r1"), Target(target)))
    assert rig.queued_seconds() == before
    assert rig.cached(LONG)["pod-0"] == predicted(1000)


def test_a_refused_request_was_never_there():
    rig = Rig()
    rig.serve("pod-0", "r0", text(200))
    blocks = rig.fleet.indexed_blocks
    rig.send("pod-0", "r1", LONG)
    rig.apply(Aborted(RequestId("r1"), refused=True))
    assert rig.fleet.indexed_blocks == blocks
    assert rig.cached(text(200))["pod-0"] == predicted(200)
    assert rig.queued_seconds()["pod-0"] == 0


def test_an_aborted_request_was_computed():
    rig = Rig()
    rig.send("pod-0", "r1", LONG)
    rig.apply(Aborted(RequestId("r1"), generated=3))
    assert rig.cached(LONG)["pod-0"] == predicted(1000)
    assert (rig.queued_seconds()["pod-0"], rig.ask()["pod-0"].requests) == (0, 0)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("blocks", [0, 1, 16, 63])
def test_of_a_request_that_breaks_off_in_its_prefill_that_part_is_cached(blocks, stream):
    """vLLM caches the blocks of each chunk of a prompt; it computes none after an abort."""
    rig, ids = Rig(), list(range(64 * 16))
    rig.send("pod-0", "r1", ids, stream=stream)
    rig.now += rig.queued_seconds()["pod-0"] * (blocks * 16 + 8) / len(ids)
    rig.apply(Aborted(RequestId("r1")))
    assert rig.cached([*ids, 7])["pod-0"] == blocks * 16
    rig.send("pod-0", "r2", ids, stream=stream)
    rig.apply(Aborted(RequestId("r2")))
    assert rig.cached([*ids, 7])["pod-0"] == blocks * 16  # its hits stay


def test_of_a_request_that_breaks_off_behind_another_nothing_is_cached():
    rig, first, ids = Rig(), list(range(800)), list(range(1000, 1640))
    rig.send("pod-0", "r1", first)
    rig.send("pod-0", "r2", ids)
    rig.now += rig.queued_seconds()["pod-0"] / 4
    rig.apply(Aborted(RequestId("r2")))
    rig.apply(Finished(RequestId("r1")))
    assert rig.cached([*ids, 7])["pod-0"] == 0
    assert rig.cached([*first, 7])["pod-0"] == 800


def test_what_was_evicted_while_a_request_waited_is_not_cached_as_it_breaks_off():
    rig, shared, long = Rig(1), list(range(320)), list(range(1000, 17000))
    rig.report("pod-0", block_size=16, num_blocks=1041)
    rig.serve("pod-0", "r0", shared)
    rig.send("pod-0", "r1", long)
    rig.send("pod-0", "r2", [each + 16000 for each in long])
    rig.send("pod-0", "r3", [*shared, *long])
    assert rig.in_flight("r3").cached == 320
    rig.apply(Finished(RequestId("r1")))
    assert rig.cached([*shared, 7])["pod-0"] == 320  # as it will be computed
    rig.apply(Aborted(RequestId("r3")))
    assert rig.cached([*shared, 7])["pod-0"] == 0


@pytest.mark.parametrize("late", [0.0, 0.5])
def test_what_the_engine_reported_of_a_prompt_that_broke_off_is_cached(late):
    rig, ids = Rig(), list(range(64 * 16))
    rig.apply(CacheFeedUp(EndpointId("default/pod-0"), complete=True))
    rig.send("pod-0", "r1", ids)
    tokens = array("I", ids[: 20 * 16]).tobytes()
    stored = BlocksStored([EngineHash(each) for each in range(20)], None, tokens, 16, model="m")
    rig.apply(CacheChanged(EndpointId("default/pod-0"), (stored,)))
    rig.now += rig.queued_seconds()["pod-0"] * late
    rig.apply(Aborted(RequestId("r1")))
    assert rig.cached([*ids, 7])["pod-0"] == 20 * 16


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
    rig.apply(finished)
    left = rig.cached(text(600, "old"))["pod-0"]
    assert 400 <= left <= 512  # 1600 - 800 - 300


def test_a_request_admitted_twice_is_at_the_second_place_only():
    rig = Rig()
    rig.send("pod-0", "r1", LONG)
    rig.send("pod-1", "r1", LONG)
    rig.send("pod-1", "r1", LONG)
    assert rig.queued_seconds()["pod-0"] == 0
    assert rig.cached(LONG) == {"pod-0": 0, "pod-1": predicted(1000)}
    rig.apply(Finished(RequestId("r1")))
    assert rig.queued_seconds() == {"pod-0": 0, "pod-1": 0}
    for name in ("pod-0", "pod-1"):
        assert rig.ask()[name].requests == 0
        assert rig.pod(name).scheduler.cache.free == UNKNOWN_CAPACITY


def test_candidates_are_a_sequence_that_takes_positions_of_any_make():
    rig = Rig(3)
    found = rig.fleet.candidates(rig.quote("r1", LONG), rig.now)
    assert found[Number(2)].endpoint.name == found[-1].endpoint.name == "pod-2"
    assert [each.endpoint.name for each in found[1:]] == ["pod-1", "pod-2"]
    assert [each.endpoint.name for each in found] == ["pod-0", "pod-1", "pod-2"]
    with pytest.raises(IndexError):
        found[Number(3)]


def test_a_fleet_that_changed_since_it_was_asked():
    """Slots move between asking and admitting: what was found then is found again."""
    rig = Rig(1)
    rig.serve("pod-0", "r0", LONG)
    quote = rig.quote("r1", LONG)
    rig.fleet.candidates(quote, rig.now)
    rig.apply(EndpointRemoved(EndpointId("default/pod-0")))
    rig.add("pod-1", "10.0.0.2")
    rig.add("pod-2", "10.0.0.3")
    rig.apply(Admitted(quote, EndpointId("default/pod-1")))
    assert rig.in_flight("r1").cached == 0
    quote = rig.quote("r2", LONG)
    rig.fleet.candidates(quote, rig.now)
    rig.add("pod-3", "10.0.0.4")
    rig.apply(Admitted(quote, EndpointId("default/pod-3")))
    assert rig.in_flight("r2").cached == 0


UNKNOWN = [
    EndpointRemoved(EndpointId("default/who")),
    LoadReported(EndpointId("default/who"), Load()),
    ScrapeFailed(EndpointId("default/who"), ScrapeFailure.REFUSED),
    OrcaReported(RequestId("who"), Target("10.0.0.1:8000"), kv_usage=1.0),
    Admitted(Rig().quote("r9", LONG), EndpointId("default/who")),
    Served(RequestId("who"), Target("10.0.0.1:8000")),
    FirstToken(RequestId("who")),
    Finished(RequestId("who"), Usage(1, 2, 3)),
    Aborted(RequestId("who"), refused=True),
    Unobserved(RequestId("who")),
]


@pytest.mark.parametrize("event", UNKNOWN, ids=lambda event: type(event).__name__)
def test_events_about_unknown_requests_and_endpoints_change_nothing(event):
    rig = Rig()
    rig.serve("pod-0", "r1", LONG)
    before = state(rig)
    rig.apply(event)
    assert state(rig) == before
    assert rig.fleet.in_flight == {}


def state(rig):
    """Return what a fleet says, but for the prompt's blocks, which are the question's."""
    asked = [
        (replaced(each, chains=(), current=None), each.waiting, each.running, each.kv_usage)
        for each in rig.ask(LONG).values()
    ]
    return asked, rig.fleet.loads(), rig.fleet.indexed_blocks


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
    chains = {n: rig.quote(f"of {n}", text(SIZES[n], n)).chains[0] for n in SIZES}
    return [name for name in SIZES if rig.pod("pod-0").scheduler.cache.match(chains[name].hashes)]


def found(rig):
    """Name those that a later request is predicted to find there."""
    return [name for name in SIZES if rig.cached(text(SIZES[name], name))["pod-0"]]


def test_a_request_that_does_not_fit_waits_and_so_do_those_behind_it():
    rig = full_house()
    assert held(rig) == ["a"]
    rig.apply(Finished(RequestId("a")))
    assert set(held(rig)) >= {"b", "c"}


def test_waiting_prompts_count_as_cached_for_later_requests():
    rig = full_house()
    assert found(rig) == ["a", "b", "c"]
    for name in "bc":
        rig.apply(Aborted(RequestId(name), refused=True))
    assert found(rig) == ["a"]


def test_when_the_first_waiting_request_is_aborted_the_next_is_scheduled():
    rig = full_house()
    rig.apply(Aborted(RequestId("b")))
    assert held(rig) == found(rig) == ["a", "c"]


def test_a_larger_pool_schedules_the_waiting_requests():
    rig = full_house()
    rig.report("pod-0", block_size=16, num_blocks=1001)
    rig.ask()
    assert held(rig) == ["a", "b", "c"]


def test_waiting_requests_are_dropped_when_the_engine_restarts():
    rig = full_house()
    rig.report("pod-0", block_size=16, num_blocks=101, started_at=1.0)
    rig.report("pod-0", block_size=16, num_blocks=101, started_at=2.0)
    for name in "abc":
        rig.apply(Aborted(RequestId(name)))
    assert held(rig) == found(rig) == []
    assert rig.pod("pod-0").scheduler.cache.free == 1600


def test_of_a_very_long_waiting_prompt_its_first_quarter_million_tokens_count_as_cached():
    rig = Rig()
    rig.report("pod-0", block_size=16, num_blocks=20_001)
    long = range(300_000)
    rig.send("pod-0", "short", range(1_000_000, 1_100_000))
    rig.send("pod-0", "long", long)
    assert rig.cached(long)["pod-0"] == 1 << 18
    rig.apply(Finished(RequestId("short")))
    assert rig.cached(long)["pod-0"] == 300_000 - 16  # the last token is always computed
    check_invariants(rig.pod("pod-0").scheduler)
    rig.apply(Aborted(RequestId("long"), refused=True))
    assert rig.cached(long)["pod-0"] == 0
