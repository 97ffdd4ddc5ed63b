"""The fleet: endpoints come, change, restart and go, and say what they serve."""

import pytest

from epp.model.endpoint import EndpointId, Target
from epp.model.events import EndpointRemoved, EndpointUpserted, Listed, OrcaReported
from epp.model.kv_changes import BlocksStored, CacheChanged, CacheFeedUp, EngineHash
from epp.model.pods.pods import CLASS_LABEL
from epp.model.request import RequestId, Usage
from epp.model.request_events import Finished, FirstToken, Served
from tests.model.rig import LONG, Rig, predicted
from tests.strategies import endpoint, text


def test_a_fleet_without_endpoints_has_no_candidates():
    rig = Rig(0)
    assert rig.ask(LONG) == {}
    assert (rig.fleet.endpoints, rig.fleet.indexed_blocks, rig.fleet.synced) == ([], 0, False)
    rig.apply(Listed())
    assert rig.fleet.synced


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


@pytest.mark.parametrize("started_at", [5.0, None])
def test_an_engine_that_says_that_it_runs_on_has_not_restarted(started_at):
    rig = Rig()
    if started_at is None:  # its KV events say so, as those of SGLang, which has no start time
        stored = BlocksStored([EngineHash(1)], None, bytes(64), 16)
        rig.apply(CacheChanged(EndpointId("default/pod-0"), [stored]))
    rig.report("pod-0", started_at=started_at, block_size=16, num_blocks=100_001)
    for number, cached in enumerate((0, predicted(1000), 0, 0, 0, 0)):
        rig.send("pod-0", f"r{number}", LONG)
        rig.apply(Finished(RequestId(f"r{number}"), Usage(1000, 1, cached)))
        rig.report("pod-0", started_at=started_at, cache_queries=9000.0 - number)
    assert rig.pod("pod-0").scheduler.generation == 0


@pytest.mark.parametrize("restart", [{"started_at": 6.0}, {"cache_queries": 1.0}, None])
def test_a_stream_that_brings_no_kv_events_says_nothing_of_restarts(restart):
    rig = Rig()
    rig.report("pod-0", started_at=5.0 if restart else None, cache_queries=9000.0)
    rig.apply(CacheFeedUp(EndpointId("default/pod-0"), complete=True))
    for number, cached in enumerate((0, predicted(1000), *[0] * 3)):
        rig.send("pod-0", f"r{number}", LONG)
        rig.apply(Finished(RequestId(f"r{number}"), Usage(1000, 1, cached)))
    if restart:
        rig.report("pod-0", **restart)
    assert rig.pod("pod-0").scheduler.generation == 1


def test_a_request_from_before_a_restart_leaves_nothing_behind():
    rig = Rig()
    rig.report("pod-0", started_at=5.0)
    rig.send("pod-0", "r1", LONG)
    rig.report("pod-0", started_at=6.0)
    rig.send("pod-0", "r2", text(500, "b"))
    rig.apply(Finished(RequestId("r1"), Usage(1000, 50, 0)))
    assert rig.cached(LONG)["pod-0"] == 0
    assert rig.cached(text(500, "b"))["pod-0"] == predicted(500)


def test_an_orca_report_changes_what_it_names():
    rig = Rig()
    rig.report("pod-0", waiting=3, running=4, kv_usage=0.5, block_size=16, num_blocks=9)
    rig.send("pod-0", "r1", LONG)
    rig.apply(OrcaReported(RequestId("r1"), Target("10.0.0.1:8000"), kv_usage=0.7, running=0.0))
    load = rig.ask()["pod-0"].load
    assert (load.waiting, load.running, load.kv_usage, load.block_size) == (3, 0, 0.7, 16)
    assert load.at == rig.now
    before = rig.queued_seconds()["pod-0"]
    rig.apply(OrcaReported(RequestId("r1"), Target("10.0.0.1:8000"), waiting=30.0))
    assert rig.queued_seconds()["pod-0"] > before


@pytest.mark.parametrize(
    ("rank", "ranks", "target", "expected"),
    [
        (None, 1, "10.0.0.1:8000", 6),
        (None, 1, "10.0.0.3:8000", 2),
        (None, 4, "10.0.0.1:8000", 2),
        (3, 1, "10.0.0.1:8000", 2),
    ],
)
def test_an_orca_report_is_of_an_engine_that_served_alone_at_its_address(
    rank, ranks, target, expected
):
    """vLLM reports the last of several engines, whichever computed the response."""
    rig = Rig(0)
    rig.add("pod-0", "10.0.0.1", rank=rank)
    rig.report("pod-0", waiting=2, ranks=ranks)
    rig.send("pod-0", "r", LONG)
    rig.apply(OrcaReported(RequestId("r"), Target(target), waiting=6.0))
    assert rig.pod("pod-0").load.waiting == expected


def test_where_no_endpoint_has_the_rank_any_at_the_target_has_served():
    rig = Rig(1)
    rig.add("ranked", "10.0.0.9", rank=3)
    rig.send("ranked", "r1", LONG)
    rig.apply(Served(RequestId("r1"), Target("10.0.0.1:8000")))
    assert rig.in_flight("r1").pod is rig.pod("pod-0")


def test_the_endpoint_that_served_is_one_that_is_there_now():
    rig = Rig(1)
    first, second = (endpoint("new", "10.0.0.9", uid=uid) for uid in ("first", "second"))
    gone = (EndpointRemoved(first.id), "pod-0")
    for event, at in (
        *(gone, (EndpointUpserted(first), "new")),
        *((EndpointUpserted(second), "new"), gone),
    ):
        rig.apply(event)
        rig.send("pod-0", "r1", LONG)
        rig.apply(Served(RequestId("r1"), second.target))
        assert rig.in_flight("r1").pod is rig.pod(at)


def test_a_class_is_known_as_long_as_an_endpoint_is_of_it():
    rig = Rig(0)
    pods, lengths = rig.fleet.pods, rig.fleet.output_lengths
    for name, label in (("pod-0", "a"), ("pod-0", "b"), ("pod-1", "b")):
        rig.add(name, "10.0.0.1", labels={CLASS_LABEL: label})
        assert [state[0] for state in pods.learned(lengths).classes] == [label]
    for name, known in (("pod-0", ["b"]), ("pod-1", [])):
        rig.apply(EndpointRemoved(EndpointId(f"default/{name}")))
        assert [state[0] for state in pods.learned(lengths).classes] == known


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
