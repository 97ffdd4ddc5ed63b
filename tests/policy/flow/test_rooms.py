"""What takes an endpoint's room: prefill, memory and slots of adapters."""

import pytest

from epp.model.caches.choice import UNKNOWN_CAPACITY
from epp.model.endpoint import EndpointId
from epp.model.events import ScrapeFailed, ScrapeFailure
from epp.policy.flow.rooms import Axis
from tests.policy.flow.flow_rig import LONG, FlowRig


@pytest.mark.parametrize(
    ("tokens", "generated", "waits"),
    [(30_000, 10_000, False), (91_000, 10_000, True), (30_000, 75_000, True)],
)
def test_memory_is_what_is_held_and_what_is_expected(tokens, generated, waits):
    rig = FlowRig(pods=1)
    rig.learn(generated)
    rig.say("pod-0")
    rig.come("first", tokens, max_tokens=generated)
    rig.begin("first")
    rig.go_on("first", 1)
    assert rig.come("next", 2000, max_tokens=generated) == (None if waits else "pod-0")
    assert rig.flow.would_wait[Axis.MEMORY] == waits
    rig.end("first", tokens, 1)
    assert rig.release() == (["next"] if waits else [])


@pytest.mark.parametrize(("tokens", "waits"), [(1000, False), (4400, True)])
def test_a_request_has_room_if_it_has_ended_before_others_take_all_of_it(tokens, waits):
    """It has, after 2.4 times its expected length: one that holds 91,000 of 100,000 tokens and is
    to have 75,000 more has then generated 2,400, or 10,500."""
    rig = FlowRig(pods=1)
    rig.learn(75_000)
    rig.say("pod-0")
    rig.come("first", 90_000, max_tokens=75_000)
    rig.begin("first")
    rig.go_on("first", 1)
    assert rig.come("next", 1000, max_tokens=tokens) == (None if waits else "pod-0")
    assert rig.flow.would_wait[Axis.MEMORY] == waits


@pytest.mark.parametrize(("apart", "sent"), [(0, 12), (500, 16)])
def test_answers_that_end_one_after_another_do_not_take_all_their_memory_at_once(apart, sent):
    """Of 8,000 tokens each, 12 fit into a cache of 100,000."""
    rig = FlowRig(pods=1)
    rig.learn(8000)
    rig.say("pod-0")
    for number in range(16):
        for before in rig.sent.keys() & {f"next {each}" for each in range(number)}:
            rig.go_on(before, 1 + apart * (number - int(before.removeprefix("next "))))
        if rig.come(f"next {number}", 10, max_tokens=8000):
            rig.begin(f"next {number}")
        rig.wait(0.1)
    assert len([name for name in rig.sent if name.startswith("next")]) == sent


def test_a_request_waits_for_a_slot_of_its_adapter_and_others_pass():
    rig = FlowRig(pods=1)
    adapters = {"running_adapters": frozenset("a"), "waiting_adapters": frozenset("b")}
    rig.say("pod-0", max_adapters=1, **adapters)
    rig.say("pod-0", max_adapters=1)
    assert rig.come("first", 100, target_model="a") == "pod-0"
    rig.begin("first")
    assert rig.come("other", 100, target_model="b") is None
    assert rig.flow.would_wait == {Axis.ADAPTERS: 1}
    assert rig.come("same", 100, target_model="a") == "pod-0"
    assert rig.come("base", 100) == "pod-0"
    for name in ("first", "same"):
        rig.begin(name)
        rig.wait(0.1)
        assert rig.release() == []
        rig.end(name, 100)
    rig.wait(0.1)
    assert rig.release() == ["other"]


@pytest.mark.parametrize(("answers", "waits"), [(1, False), (10, True)])
def test_each_answer_to_a_prompt_takes_memory(answers, waits):
    rig = FlowRig(pods=1)
    rig.learn(8000)
    rig.say("pod-0")
    rig.come("first", 20_000, max_tokens=8000, n=answers)
    rig.begin("first")
    rig.go_on("first", answers)
    assert rig.come("next", 2000, max_tokens=8000) == (None if waits else "pod-0")
    assert rig.flow.would_wait[Axis.MEMORY] == waits


def test_what_is_preempted_needs_all_its_tokens_again():
    rig = FlowRig(pods=1, capacity=20_000)
    for name in ("a", "b"):
        rig.come(name, 1000)
        rig.begin(name)
    for generated in range(1000, 10_000, 500):
        rig.go_on("a", generated)
        rig.go_on("b", generated)
    scheduler = rig.pod("pod-0").scheduler
    assert [each.request_id for each in scheduler.waiting] == ["b"]
    coming = rig.pod("pod-0").growth.most()
    assert rig.flow.rooms.used_tokens(rig.pod("pod-0")) - coming >= 2 * (1000 + 9500 - 1)


def test_an_empty_endpoint_takes_any_single_request():
    rig = FlowRig(pods=1, capacity=1000)
    assert rig.come("huge", 900, max_tokens=10**9) == "pod-0"
    assert rig.come("next", 10) is None


@pytest.mark.parametrize("load", [{"running": 40.0, "kv_usage": 1.0}, {"waiting": 100.0}])
def test_what_others_sent_counts_as_soon_as_it_is_reported(load):
    rig = FlowRig(pods=1)
    rig.say("pod-0", **load)
    assert rig.come("a", 10) is None  # after a restart: the books are empty, the pod is full
    rig.say("pod-0", running=20.0, kv_usage=0.3)
    assert rig.release() == ["a"]


def test_a_cache_is_filled_where_steps_are_short_whoever_sent_what_is_in_it():
    rig = FlowRig(pods=1)
    rig.say("pod-0", running=10.0, kv_usage=0.9)  # the books may have lost some of these
    assert rig.come("a", 10) == "pod-0"


@pytest.mark.parametrize(
    "load",
    [
        {"num_blocks": None},
        {"ranks": 2},
    ],
    ids=["no block count", "several engines"],
)
def test_endpoints_that_cannot_be_accounted_for_get_requests_at_once(load):
    rig = FlowRig(pods=1)
    rig.say("pod-0", running=5.0, kv_usage=0.9, **load)
    for number in range(5):
        assert rig.come(str(number), LONG) == "pod-0"


@pytest.mark.parametrize("late", [True, False], ids=["late pages", "the picker was paused"])
def test_what_was_sent_takes_room_while_reports_are_missing(late):
    rig = FlowRig(pods=1)
    rig.come("first", 90_000, stream=True)
    rig.begin("first")
    assert [rig.come(each, LONG, stream=True) for each in "ab"] == [None, None]
    rig.wait(11)
    if late:
        rig.apply(ScrapeFailed(EndpointId("default/pod-0"), ScrapeFailure.LATE))
    assert rig.release() == []
    rig.end("first", 90_000, 1)
    assert rig.release() == ["a"]


@pytest.mark.parametrize(
    ("taken", "priority", "waits"),
    [(10_000, 0, False), (10_000, -1, True), (30_000, 0, True)],
    ids=["little", "a batch", "much"],
)
def test_a_request_as_large_as_a_cache_goes_where_others_take_little(taken, priority, waits):
    rig = FlowRig(pods=1)
    rig.come("first", taken, stream=True)
    rig.begin("first")
    assert (rig.come("large", 95_000, priority=priority) is None) == waits
    assert rig.come("next", 1000) == ("pod-0" if waits else None)


def test_of_the_memory_of_an_endpoint_that_has_not_reported_yet_nothing_is_known():
    rig = FlowRig(pods=0)
    rig.add("pod-0", "10.0.0.1")
    rig.send("pod-0", "large", rig.words(UNKNOWN_CAPACITY))
    rig.begin("large")
    assert rig.come("next", 10) == "pod-0"
