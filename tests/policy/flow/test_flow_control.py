"""Requests wait while their best endpoint has no room, go in the right order, and none is lost."""

import gc
from collections import Counter
from math import inf

import pytest

from epp.errors import NoEndpoints, Overloaded
from epp.model.caches.choice import UNKNOWN_CAPACITY
from epp.model.endpoint import EndpointId
from epp.model.events import AttributesReported, EndpointRemoved, ScrapeFailed, ScrapeFailure
from epp.model.request import RequestId
from epp.model.request_events import Aborted, Failure, ResponseNamed, Unobserved
from epp.policy.flow.held import HeldRequest
from epp.policy.flow.rooms import Axis
from tests.policy.flow.flow_rig import FlowRig
from tests.strategies import request

LONG = 20_000
"""Tokens whose prefill takes more than the 0.3 seconds that an endpoint may owe."""


@pytest.fixture
def rig():
    return FlowRig()


def fill(rig, tokens=LONG):
    """Give every pod a long prompt."""
    return [rig.come(f"first {number}", tokens) for number in range(len(rig.fleet.pods.values()))]


def test_while_there_is_room_nothing_waits(rig):
    assert {rig.come(str(number), 100) for number in range(20)} == {"pod-0", "pod-1"}
    assert rig.flow.would_wait.total() == 0
    assert rig.until() is None


def test_requests_without_a_prompt_keep_nobody_waiting(rig):
    for number in range(2000):
        rig.flow.route(request(f"models {number}"), rig.now)
    assert rig.come("chat", 100) is not None
    assert rig.flow.would_wait.total() == 0


def test_a_request_waits_while_all_owe_prefill_and_goes_at_a_first_token(rig):
    assert sorted(fill(rig)) == ["pod-0", "pod-1"]
    assert rig.come("next", 1000) is None
    assert rig.release() == []
    rig.begin("first 1")
    assert rig.release() == ["next"]
    assert rig.sent["next"] == rig.sent["first 1"]
    assert rig.until() is None


def test_a_follow_up_waits_for_the_endpoint_that_has_the_response(rig):
    home = rig.come("first", LONG)
    rig.apply(ResponseNamed(RequestId("first"), "resp_1"))
    assert rig.come("follow-up", 1000, response_id="resp_1") is None
    rig.wait(0.1)
    assert rig.release() == []
    rig.begin("first")
    assert rig.release() == ["follow-up"]
    assert rig.sent["follow-up"] == home


def test_requests_of_one_client_that_wait_share_its_id(rig):
    fill(rig)
    for number in range(3):
        rig.come(f"next {number}", 1000, fairness_id=b"client-a".decode())
    first, *others = [held.request.fairness_id for held in rig.held.values()]
    assert first == "client-a"
    assert all(each is first for each in others)


def test_those_that_wait_are_not_looked_at_once_the_last_room_is_taken(rig):
    fill(rig)
    came = rig.now
    for priority in range(4):
        rig.come(f"next {priority}", LONG, priority=priority)
    rig.wait(0.1)
    rig.begin("first 1")
    assert rig.release() == ["next 3"]
    assert {held.tried_at for held in rig.held.values()} == {came}


def test_prefill_that_is_done_by_the_clock_makes_room_too(rig):
    fill(rig)
    rig.come("next", 1000)
    at = rig.until()
    assert at is not None
    assert at - rig.now <= 0.02
    rig.wait(2)  # 20,000 tokens take 1.2 seconds
    assert rig.release() == ["next"]


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


def test_what_others_sent_counts_as_soon_as_it_is_reported():
    rig = FlowRig(pods=1)
    rig.say("pod-0", running=40.0, kv_usage=1.0)
    assert rig.come("a", 10) is None  # after a restart: the books are empty, the pod is full
    rig.say("pod-0", running=20.0, kv_usage=0.3)
    assert rig.release() == ["a"]


def test_a_cache_is_filled_where_steps_are_short_whoever_sent_what_is_in_it():
    rig = FlowRig(pods=1)
    rig.say("pod-0", running=10.0, kv_usage=0.9)  # the books may have lost some of these
    assert rig.come("a", 10) == "pod-0"


def with_a_full_best_pod(**settings):
    """Return a rig that would send all to its first pod, which is full; the second has room."""
    rig = FlowRig(pods=2, **settings)
    rig.say("pod-1", running=500.0, kv_usage=0.1)
    rig.first_word += 1
    first = rig.words(2000)
    rig.flow.route(request("first", first), rig.now)
    rig.begin("first")
    rig.say("pod-0", running=2.0, kv_usage=1.0)
    return rig, first


def test_a_request_goes_elsewhere_if_its_best_endpoint_is_full_and_no_cache_saves_any_of_it():
    rig, _ = with_a_full_best_pod()
    assert rig.come("a", 100) == "pod-1"
    assert not rig.flow.would_wait


def with_a_long_prompt_that_waits():
    """The other pod has room; what is lost if the prompt goes there, and its own prefill."""
    rig, _ = with_a_full_best_pod()
    rig.say("pod-1", running=50.0, kv_usage=0.1)
    assert rig.come("long", LONG) is None
    held = rig.held["long"]
    best, other = (
        each.predicted_ttft + each.generation_seconds + each.crowding_seconds
        for each in rig.fleet.candidates(held.quote, rig.now)
    )
    return rig, other - best, held.seconds


def test_a_long_prompt_goes_elsewhere_once_it_has_waited_for_as_long_as_it_holds_others_up():
    rig, lost, own = with_a_long_prompt_that_waits()
    for waited, went in ((lost - own - 1, []), (2, ["long"])):
        rig.wait(waited)
        rig.say("pod-0", running=2.0, kv_usage=1.0)
        rig.say("pod-1", running=50.0, kv_usage=0.1)
        assert rig.release() == went
    assert rig.sent["long"] == "pod-1"


def test_a_long_prompt_goes_elsewhere_at_once_if_as_much_prefill_waits_for_the_best_endpoint():
    rig, lost, own = with_a_long_prompt_that_waits()
    for number in range(int(lost / own) - 1):
        assert rig.come(str(number), LONG) is None
    rig.wait(0.1)
    assert rig.release() == []
    for number in range(2):
        assert rig.come(f"next {number}", LONG) is None
    rig.wait(0.1)
    assert [rig.sent[each] for each in rig.release()] == ["pod-1"]


def test_a_long_prompt_goes_nowhere_else_if_many_are_decoded_there():
    rig, _ = with_a_full_best_pod()
    assert rig.come("long", LONG) is None
    for _ in range(20):
        rig.wait(10)
        rig.say("pod-0", running=2.0, kv_usage=1.0)
        rig.say("pod-1", running=200.0, kv_usage=0.1)
        assert rig.release() == []
    assert rig.come("short", 100) == "pod-1"


def test_a_request_goes_nowhere_else_if_steps_are_long_there():
    rig, _ = with_a_full_best_pod()
    rig.say("pod-1", running=1000.0, kv_usage=0.1)
    assert rig.come("a", 100) is None


def test_a_request_waits_for_the_cache_that_saves_it_a_prefill():
    rig, first = with_a_full_best_pod()
    held = rig.flow.route(request("next", [*first, *rig.words(100)]), rig.now)
    assert held.endpoint_id.endswith("pod-0")
    assert rig.flow.would_wait == {Axis.MEMORY: 1}
    assert rig.come("other", 100) == "pod-1"


def test_a_request_that_waits_goes_where_there_is_room_first():
    rig, _ = with_a_full_best_pod()
    rig.say("pod-1", running=500.0, kv_usage=1.0)
    assert rig.come("a", 100) is None
    assert rig.come("b", 100) is None
    waited_at = {held.endpoint_id for held in rig.held.values()}
    rig.say("pod-1", running=500.0, kv_usage=0.1)
    assert {each.rpartition("/")[2] for each in waited_at} == {"pod-0"}
    assert rig.release() == ["a"]
    rig.wait(0.1)
    assert rig.release() == ["b"]
    assert set(rig.sent.values()) == {"pod-1"}


def test_what_would_go_elsewhere_is_not_counted_where_nothing_waits():
    rig, _ = with_a_full_best_pod(holds=False)
    assert rig.come("a", 100) == "pod-0"
    assert not rig.flow.would_wait


def with_three_slots(*, stream=True, **load):
    """Return a rig with a pod that runs three requests at once; others come whole at their end."""
    rig = FlowRig(pods=1)

    def come(name):
        rig.come(name, 10, stream=stream)
        if stream:
            rig.begin(name)

    for number in range(4):
        come(str(number))
    for number in range(5):
        rig.wait(30)
        rig.end(str(number), 10, 10)
        come(str(number + 4))
        rig.say("pod-0", running=3.0, waiting=1.0, kv_usage=0.1, counted=True, **load)
    return rig


@pytest.mark.parametrize("max_adapters", [0, 2], ids=["unknown", "all run"])
def test_adapters_that_all_have_a_slot_hide_no_want_of_slots(max_adapters):
    """vLLM's `LoRARequestStates` names all adapters with requests as running and as waiting."""
    named = {"running_adapters": frozenset("ab"), "waiting_adapters": frozenset("ab")}
    rig = with_three_slots(max_adapters=max_adapters, **named)
    assert rig.come("next", 10) is None
    assert rig.flow.would_wait[Axis.SLOTS] == 1


def test_slots_are_learned_from_what_waits_without_need_and_unlearned():
    rig = with_three_slots()
    assert rig.come("next", 10) is None
    assert rig.flow.would_wait[Axis.SLOTS] == 1
    assert rig.come("after", 10) is None
    rig.end("5", 10, 10)
    assert rig.release() == ["next"]  # it waits there for the next of the three slots
    assert list(rig.held) == ["after"]
    rig.wait(1)
    rig.say("pod-0", running=3.0, counted=True)
    assert rig.release() == []  # "next" may not have come there yet: no more than one waits there
    rig.say("pod-0", running=4.0, counted=True)
    assert rig.release() == ["after"]  # it runs one more than was known


def test_a_batch_waits_in_no_engine_for_a_slot():
    rig = with_three_slots()
    rig.end("5", 10, 10)  # three are left
    assert rig.come("batch", 10, priority=-1) is None
    assert rig.flow.would_wait[Axis.SLOTS] == 1
    rig.wait(1)
    rig.say("pod-0", running=3.0, waiting=1.0, kv_usage=0.1, counted=True)
    assert rig.release() == []
    assert rig.come("next", 10) == "pod-0"
    rig.wait(1)
    rig.say("pod-0", running=4.0, kv_usage=0.1, counted=True)  # it can run more than was known
    assert rig.release() == ["batch"]


def test_a_batch_tries_an_engine_for_one_more_slot_only_now_and_then():
    rig = with_three_slots()
    rig.end("5", 10, 10)  # three are left
    assert rig.come("batch", 10, priority=-1) is None
    for seconds, went in ((1, []), (50, []), (10, ["batch"])):
        rig.wait(seconds)
        rig.say("pod-0", running=3.0, kv_usage=0.1, counted=True)
        assert rig.release() == went


def test_slots_are_learned_from_responses_that_come_whole():
    rig = with_three_slots(stream=False)
    assert rig.come("next", 10) is None
    assert rig.flow.would_wait[Axis.SLOTS] == 1


def test_slots_are_learned_while_a_long_prompt_waits_for_one():
    rig = FlowRig(pods=1)
    for number in range(4):
        rig.send("pod-0", str(number), rig.words(LONG), stream=True)
    for number in range(3):
        rig.begin(str(number))
    for number in range(6):
        rig.wait(5)
        rig.say("pod-0", running=3.0, waiting=1.0, kv_usage=0.1, counted=True)
        rig.end(str(number), LONG, 10)
        rig.begin(str(number + 3))
        rig.send("pod-0", str(number + 4), rig.words(LONG), stream=True)
    assert rig.flow.rooms.ratios(rig.pod("pod-0"), rig.now)[Axis.SLOTS] >= 1


def test_slots_are_learned_where_responses_are_not_observed():
    rig = FlowRig(pods=1)
    ledger = rig.pod("pod-0").ledger
    for second in range(60):
        if second % 4 == 0:
            rig.send("pod-0", str(second), rig.words(10))
            rig.apply(Unobserved(RequestId(str(second))))
        rig.wait(1)
        running = min(ledger.requests, 3)
        waiting = ledger.requests - running
        rig.say("pod-0", running=running, waiting=waiting, kv_usage=0.1, counted=True)
    rig.come("next", 10)
    assert rig.flow.would_wait[Axis.SLOTS] == 1


def test_slots_of_an_engine_are_not_those_of_another_of_its_name():
    rig = with_three_slots()
    rig.add("pod-0", "10.0.0.9")
    for number in range(4):
        rig.come(f"new {number}", 10)
        rig.begin(f"new {number}")
        rig.say("pod-0", running=number + 1.0, waiting=1.0, counted=True)
    assert rig.flow.would_wait.get(Axis.SLOTS, 0) == 0


ADAPTERS = {
    "running_adapters": frozenset("a"),
    "waiting_adapters": frozenset("b"),
    "max_adapters": 1,
}


@pytest.mark.parametrize(
    "reports",
    [
        [(3, 1)] * 4,
        [(3, 1), (3, 1), (3, 1), (3, 0)] * 4,
        [(number, 40 - number) for number in range(3, 30, 3)],
        [(12, 1), *[(running, 1) for running in (5, 8, 4, 7) * 3]],
        [(3, 1, {"kv_usage": 0.95})] * 9,
        [(3, 1, ADAPTERS)] * 9,
        [(3, 1, {"follow": False})] * 9,
    ],
    ids=[
        "short",
        "interrupted",
        "rising",
        "fewer than ran before",
        "no memory",
        "no adapter's slot",
        "behind one long prompt",
    ],
)
def test_what_waits_for_a_step_or_for_something_else_is_no_want_of_slots(reports):
    rig = FlowRig(pods=1)
    for number in range(40):
        rig.come(str(number), 10)
        rig.begin(str(number))
    for number, (running, waiting, *more) in enumerate(reports):
        rig.wait(1)
        load = {"kv_usage": 0.1, "counted": True, **(more[0] if more else {})}
        if load.pop("follow", True):
            rig.end(str(number), 10, 10)
            rig.come(str(number + 40), 10)
            rig.begin(str(number + 40))
        rig.say("pod-0", running=float(running), waiting=float(waiting), **load)
    rig.come("next", 10)
    assert rig.flow.would_wait.get(Axis.SLOTS, 0) == 0


def test_what_waits_behind_a_prompt_that_is_computed_for_long_is_no_want_of_slots():
    rig = FlowRig(pods=1)
    for number in range(10):
        rig.send("pod-0", str(number), rig.words(10), stream=True)
        rig.begin(str(number))
    rig.send("pod-0", "long", rig.words(LONG), stream=True)
    rig.send("pod-0", "behind", rig.words(10), stream=True)
    rig.wait(2)
    for number in range(10):
        rig.wait(1)
        rig.end(str(number), 10, 10)
        rig.send("pod-0", str(number + 10), rig.words(10), stream=True)
        rig.begin(str(number + 10))
        rig.say("pod-0", running=11.0, waiting=1.0, kv_usage=0.1, counted=True)
    rig.come("next", 10)
    assert rig.flow.would_wait.get(Axis.SLOTS, 0) == 0


@pytest.mark.parametrize(
    "load",
    [
        {"num_blocks": None},
        {"ranks": 2},
        {"at": 0.0},
    ],
    ids=["no block count", "several engines", "stale"],
)
def test_endpoints_that_cannot_be_accounted_for_get_requests_at_once(load):
    rig = FlowRig(pods=1)
    rig.say("pod-0", running=5.0, kv_usage=0.9, **load)
    for number in range(5):
        assert rig.come(str(number), LONG) == "pod-0"


def test_reports_that_come_seldom_are_good_until_some_are_missed():
    rig = FlowRig(pods=1, stale_seconds=90.0)
    rig.wait(89)
    assert [rig.come(str(number), LONG) for number in range(2)] == ["pod-0", None]
    rig.wait(2)
    assert rig.release() == ["1"]


def test_what_asks_no_engine_for_work_does_not_wait(rig):
    fill(rig)
    outcome = rig.flow.route(request("models"), rig.now)
    assert outcome.endpoint.name in {"pod-0", "pod-1"}


def test_the_shortest_goes_first_and_waiting_counts():
    rig = FlowRig(pods=1, ageing=0.1)
    rig.say("pod-0", running=9.0, kv_usage=1.0)
    rig.come("long", 15_000)  # 0.8 seconds of prefill
    rig.wait(0.01)
    rig.come("short", 100)
    rig.wait(9)
    rig.say("pod-0", running=9.0, kv_usage=1.0)
    rig.come("late", 200)
    rig.say("pod-0")
    went = []
    while rig.held:
        for each in rig.release():
            went.append(each)
            rig.begin(each)
            rig.end(each, 100, 10)
    # 9 seconds of waiting are worth 0.9 of prefill.
    assert went == ["short", "long", "late"]


def test_priorities_go_before_and_fair_shares_within_them():
    rig = FlowRig(pods=1)
    rig.come("first", LONG)
    for number in range(6):
        rig.come(f"flood {number}", 8000, fairness_id="flood")
    rig.come("polite", 8000, fairness_id="polite")
    rig.come("batch", 10, priority=-1)
    rig.come("urgent", 8000, priority=1)
    rig.end("first", LONG, 10)
    went = []
    while rig.held:
        for each in rig.release():
            went.append(each)
            rig.begin(each)
            rig.end(each, 8000, 10)
    assert went[0] == "urgent"
    assert went[-1] == "batch"
    assert went.index("polite") <= 2


def test_one_that_waits_does_not_overtake_a_higher_priority_at_an_endpoint_it_changes_to():
    rig = FlowRig(pods=2)
    rig.say("pod-1", running=9.0, kv_usage=1.0)
    assert rig.come("first", 40_000) == "pod-0"
    rig.begin("first")
    assert rig.come("high", 60_000, priority=1) is None
    at = rig.held["high"].endpoint_id
    rig.say("pod-1", running=9.0, kv_usage=1.0)
    rig.come("low", 100)
    waits = {held.endpoint_id for held in rig.held.values()}
    assert waits == {at}
    for _ in range(5):
        rig.wait(0.1)
        assert rig.release() == []  # though there is room for the low one
    rig.end("first", 40_000, 10)
    assert rig.release()[0] == "high"


def test_one_that_comes_does_not_overtake_those_that_wait_at_its_endpoint():
    rig = FlowRig(pods=1)
    rig.come("first", LONG)
    rig.come("waits", 100)
    rig.begin("first")  # there is room now, and "waits" was first
    assert rig.come("next", 200) is None
    assert rig.come("shorter", 8) == "pod-0"
    assert rig.release() == ["waits", "next"]


def test_a_client_that_is_gone_leaves_the_line(rig):
    fill(rig)
    rig.come("gone", 10)
    rig.come("stays", 20)
    rig.flow.withdraw(rig.held.pop("gone"))
    rig.begin("first 0")
    assert rig.release() == ["stays"]
    assert rig.flow.line.requests == rig.flow.line.bytes == 0


def held_in_memory():
    """Return how many requests that wait or waited are kept by anything."""
    return sum(isinstance(each, HeldRequest) for each in gc.get_objects())


def test_nothing_is_left_of_many_clients_that_are_gone_while_others_wait():
    rig = FlowRig(pods=1)
    rig.say("pod-0", running=9.0, kv_usage=1.0)
    rig.come("stays", 10)
    before = held_in_memory()
    for number in range(100):
        name = f"gone {number}"
        rig.come(name, 100, fairness_id=f"client {number % 3}")
        rig.flow.withdraw(rig.held.pop(name))
    assert rig.flow.line.requests == 1
    assert held_in_memory() <= before + 3


def test_those_that_wait_at_an_endpoint_that_is_gone_go_to_another():
    rig = FlowRig(pods=2)
    fill(rig)
    rig.come("next", 10)
    at = rig.held["next"].endpoint_id
    rig.apply(EndpointRemoved(at))
    left = "first 0" if f"default/{rig.sent['first 0']}" != at else "first 1"
    rig.begin(left)
    assert rig.release() == ["next"]


def test_who_has_waited_longest_is_sent_all_the_same():
    rig = FlowRig(pods=1, most_seconds=5.0)
    rig.say("pod-0", running=9.0, kv_usage=1.0)
    rig.come("next", 10)
    for _ in range(4):
        rig.wait(1)
        rig.say("pod-0", running=9.0, kv_usage=1.0)  # for ever full
        assert rig.release() == []
    rig.wait(1)
    assert rig.release() == ["next"]


def test_a_proxy_whose_timer_runs_is_not_kept_waiting():
    rig = FlowRig(pods=1)
    rig.come("first", LONG)
    assert rig.come("buffered", 10, most_wait=0.1) is None
    rig.wait(0.1)
    assert rig.release() == ["buffered"]
    assert rig.come("none", 10, most_wait=0.0) == "pod-0"


def test_an_empty_pool_holds_if_asked_to_and_serves_its_first_pod_one_by_one():
    with pytest.raises(NoEndpoints):
        FlowRig(pods=0).come("1", 10)
    rig = FlowRig(pods=0, empty_seconds=30.0)
    for number in range(3):
        assert rig.come(str(number), LONG + number) is None
    rig.wait(20)
    assert rig.release() == []
    rig.add("pod-0", "10.0.0.1")
    rig.say("pod-0")
    assert rig.release() == ["0"]
    rig.wait(10)
    rig.begin("0")
    assert rig.release() == ["1"]


def test_a_first_pod_that_has_not_reported_yet_gets_them_one_by_one_for_a_while():
    rig = FlowRig(pods=0, empty_seconds=30.0)
    for number in range(4):
        rig.come(str(number), LONG + number)
    rig.add("pod-0", "10.0.0.1")
    assert rig.release() == ["0"]
    assert rig.come("new", LONG + 9) is None
    rig.begin("0")
    assert rig.release() == ["1"]
    rig.wait(6)  # its metrics page says nothing
    assert rig.release() == ["2", "3", "new"]


def test_of_the_memory_of_an_endpoint_that_has_not_reported_yet_nothing_is_known():
    rig = FlowRig(pods=0)
    rig.add("pod-0", "10.0.0.1")
    rig.send("pod-0", "large", rig.words(UNKNOWN_CAPACITY))
    rig.begin("large")
    assert rig.come("next", 10) == "pod-0"


def test_nothing_waits_for_an_endpoint_that_has_never_answered():
    rig = FlowRig(pods=0)
    rig.add("pod-0", "10.0.0.1")
    assert [rig.come(name, LONG) for name in ("first", "next")] == ["pod-0", None]
    rig.apply(ScrapeFailed(EndpointId("default/pod-0"), ScrapeFailure.REFUSED))
    assert rig.release() == ["next"]


def test_an_empty_pool_waits_for_both_stages():
    rig = FlowRig(pods=0, empty_seconds=30.0)
    rig.come("1", 10)
    rig.wait(20)
    rig.add("p", "10.0.0.1", labels={"llm-d.ai/role": "prefill"})
    rig.say("p")
    assert rig.release() == []
    assert rig.come("2", 10) is None
    rig.wait(9)
    rig.add("d", "10.0.0.2", labels={"llm-d.ai/role": "decode"})
    rig.say("d")
    assert rig.release() == ["1", "2"]


def test_a_stage_that_does_not_come_refuses_with_503():
    rig = with_prefill_alone(empty_seconds=30.0)
    assert rig.come("1", 10) is None
    rig.wait(30)
    assert rig.release() == []
    assert (rig.refused["1"].status, rig.refused["1"].reason) == (503, "no-endpoints")
    with pytest.raises(NoEndpoints, match="role is prefill"):
        with_prefill_alone().come("2", 10)


def with_prefill_alone(**settings):
    rig = FlowRig(pods=0, **settings)
    rig.add("p", "10.0.0.1", labels={"llm-d.ai/role": "prefill"})
    rig.say("p")
    return rig


PREFILL = """
plugins: [{type: prefill-filter}, {type: least-ttft-picker}]
schedulingProfiles:
- {name: default, plugins: [{pluginRef: prefill-filter}, {pluginRef: least-ttft-picker}]}
"""


def test_where_requests_are_for_one_stage_its_endpoints_are_all_that_is_waited_for():
    rig = with_prefill_alone(policy=PREFILL, most_seconds=5.0, empty_seconds=2.0)
    rig.come("first", LONG)
    assert rig.come("next", 10) is None
    rig.say("p", running=9.0, kv_usage=1.0)
    rig.wait(4)
    assert rig.release() == []
    rig.wait(1)
    assert rig.release() == ["next"]


def test_of_an_endpoint_that_never_reports_it_is_not_learned_anew_that_it_may():
    rig = FlowRig(pods=0, empty_seconds=30.0)
    rig.add("pod-0", "10.0.0.1")
    rig.come("first", LONG)
    for second in range(20):
        rig.apply(AttributesReported(EndpointId("default/pod-0"), {"gpu": float(second)}))
        rig.come(str(second), LONG)
        rig.wait(1)
    rig.release()
    assert not rig.held


@pytest.mark.parametrize("most", [240.0, 20.0])
def test_an_empty_pool_that_stays_empty_refuses_with_503(most):
    rig = FlowRig(pods=0, empty_seconds=30.0, most_seconds=most)
    rig.come("1", 10)
    rig.wait(29)
    assert rig.release() == []
    assert list(rig.held) == ["1"]
    rig.wait(1)
    assert rig.release() == []
    assert (rig.refused["1"].status, rig.refused["1"].reason) == (503, "no-endpoints")


@pytest.mark.parametrize("empty_seconds", [0.0, 30.0, 400.0, inf])
def test_one_that_waits_as_the_last_endpoint_goes_waits_on_to_its_own_bound(empty_seconds):
    rig = FlowRig(pods=1, empty_seconds=empty_seconds, most_seconds=240.0)
    fill(rig)
    rig.come("next", 10)
    rig.wait(200)
    rig.say("pod-0", running=9.0, kv_usage=1.0)
    assert rig.release() == []
    rig.apply(EndpointRemoved(EndpointId("default/pod-0")))
    rig.wait(39)
    assert rig.release() == []
    assert list(rig.held) == ["next"]
    rig.wait(1)
    assert rig.release() == []
    assert (rig.refused["next"].reason, rig.refused["next"].waited) == ("no-endpoints", 240)


def test_in_an_empty_pool_an_objective_is_a_bound_too():
    rig = FlowRig(pods=0, empty_seconds=30.0)
    rig.come("1", 10, headers={"x-llm-d-slo-ttft-ms": "2000"})
    rig.wait(2)
    assert rig.release() == []
    assert rig.refused["1"].reason == "no-endpoints"


def test_all_answers_are_watched_while_room_is_scarce():
    rig = FlowRig(pods=1)
    unknown = RequestId("which the fleet needs no end of")
    rig.come("first", LONG)
    assert not rig.flow.needs_end(unknown, rig.now)
    rig.come("next", 10)
    assert rig.flow.needs_end(unknown, rig.now)
    rig.begin("first")
    assert rig.release() == ["next"]
    assert rig.flow.needs_end(unknown, rig.now)
    rig.wait(60)
    assert not rig.flow.needs_end(unknown, rig.now)


FULL = {"running": 3.0, "waiting": 7.0, "kv_usage": 0.95}


def test_a_negative_priority_waits_for_room_while_the_pool_is_saturated():
    rig = FlowRig(pods=1)
    rig.say("pod-0", **FULL)
    assert rig.come("batch", 10, priority=-1) is None
    rig.say("pod-0")
    assert rig.release() == ["batch"]


@pytest.mark.parametrize(
    ("settings", "load", "asked"),
    [
        ({"holds": False}, {}, {}),
        ({}, {"num_blocks": None}, {}),
        ({}, {}, {"most_wait": 0.0}),
    ],
    ids=["off", "of no known room", "a proxy that does not wait"],
)
def test_where_nothing_waits_a_negative_priority_is_refused_then(settings, load, asked):
    rig = FlowRig(pods=1, **settings)
    rig.say("pod-0", **FULL, **load)
    with pytest.raises(Overloaded) as raised:
        rig.come("batch", 10, priority=-1, **asked)
    assert raised.value.reason == "saturated"


def test_a_negative_priority_of_unknown_work_is_refused_while_the_pool_is_saturated():
    rig = FlowRig(pods=1)
    rig.say("pod-0", **FULL)
    with pytest.raises(Overloaded):
        rig.flow.route(request("batch", priority=-1), rig.now)


def test_off_only_counts(rig):
    rig = FlowRig(pods=1, holds=False)
    assert [rig.come(str(number), LONG) for number in range(3)] == ["pod-0"] * 3
    assert rig.flow.would_wait == {Axis.PREFILL: 2}


def refuse(rig, identity, failure=Failure.BUSY, *, served=True):
    rig.apply(Aborted(RequestId(identity), refused=True, failure=failure, served=served))


def shedding(pods, failure=Failure.BUSY):
    """A rig whose pod-0 has just answered five requests with errors."""
    rig = FlowRig(pods=pods)
    for number in range(5):
        rig.send("pod-0", f"shed {number}", rig.words(100))
        refuse(rig, f"shed {number}", failure)
    return rig


@pytest.mark.parametrize("failure", [Failure.BUSY, Failure.EMPTY, Failure.GATEWAY])
def test_an_endpoint_that_refuses_all_gets_one_request_a_second(failure):
    rig = shedding(1, failure)
    assert [rig.come(name) for name in "abc"] == [None] * 3
    assert rig.flow.would_wait[Axis.REFUSALS] == 3
    for name in "ab":
        assert rig.release() == []
        rig.wait(1.0)
        assert rig.release() == [name]
        refuse(rig, name, failure)
    rig.wait(1.0)
    assert rig.release() == ["c"]
    rig.begin("c")
    assert [rig.come(name) for name in "de"] == ["pod-0", "pod-0"]


def filled(requests):
    """A rig of a pool that was empty, where so many requests wait, and that gets its first pods."""
    rig = FlowRig(pods=0, empty_seconds=60.0)
    assert [rig.come(str(number), 10) for number in range(requests)] == [None] * requests
    assert rig.quoted == [str(number) for number in range(requests)]  # each once
    for number in range(2):
        rig.add(f"pod-{number}", f"10.0.0.{number + 1}")
        rig.say(f"pod-{number}")
    return rig


def test_the_first_pods_of_an_empty_pool_get_a_few_requests_until_they_answer():
    rig = filled(30)
    went = rig.release()
    assert Counter(rig.sent[name] for name in went) == {"pod-0": 5, "pod-1": 5}
    for name in went:
        if rig.sent[name] == "pod-0":
            refuse(rig, name, Failure.GATEWAY)
    assert rig.release() == []
    rig.begin(next(name for name in went if rig.sent[name] == "pod-1"))
    went = rig.release()
    assert len(went) == 20
    assert {rig.sent[name] for name in went} == {"pod-1"}


def test_first_pods_that_say_nothing_for_a_second_get_the_others_too():
    rig = filled(30)
    assert len(rig.release()) == 10
    rig.wait(0.9)
    assert rig.release() == []
    rig.wait(0.1)
    assert len(rig.release()) == 20


def test_others_take_the_requests_of_one_that_refuses_whatever_that_costs():
    rig = shedding(2)
    rig.say("pod-1", running=30, kv_usage=0.3)
    assert [rig.come(str(number)) for number in range(3)] == ["pod-1"] * 3


@pytest.mark.parametrize(
    ("seconds", "others", "goes"),
    [(5, 0, []), (7, 0, ["next"]), (7, 1, [])],
    ids=["a little", "one", "all"],
)
def test_what_waits_for_a_late_endpoint_goes_to_another_with_room_that_is_not_late(
    seconds, others, goes
):
    """A hung endpoint owes no more than at first, and what waits for it would wait for ever."""
    rig = FlowRig()
    cached = rig.words(2 * LONG)
    rig.serve("pod-0", "before", cached)
    for name in ["pod-0"] * 2 + ["pod-1"] * others:
        rig.send(name, f"unanswered {len(rig.fleet.in_flight)}", rig.words(LONG // 2))
    rig.held["next"] = rig.flow.route(request("next", cached), rig.now)
    assert rig.held["next"].endpoint_id == EndpointId("default/pod-0")
    rig.wait(seconds)
    assert (rig.release(), rig.sent) == (goes, dict.fromkeys(goes, "pod-1"))


@pytest.mark.parametrize("life", ["first token", "page"])
def test_an_endpoint_that_shows_life_is_not_late(life):
    """vLLM serves others while it compiles the grammar of one, or waits for its KV blocks."""
    rig = FlowRig()
    cached = rig.words(2 * LONG)
    rig.serve("pod-0", "before", cached)
    for name in ("passed over", "unanswered"):
        rig.send("pod-0", name, rig.words(LONG // 2))
    rig.held["next"] = rig.flow.route(request("next", cached), rig.now)
    rig.wait(7)
    if life == "page":
        rig.say("pod-0", running=2, kv_usage=0.2)
    else:
        rig.send("pod-0", "short", rig.words(10))
        rig.begin("short")
    assert rig.release() == []


def test_the_errors_of_one_client_s_requests_hold_up_no_others():
    assert shedding(1, Failure.ERROR).come("another's") == "pod-0"


@pytest.mark.parametrize("answer", ["finished", "invalid", "proxys-own"])
def test_a_row_of_refusals_is_of_that_endpoints_answers_alone(answer):
    rig = FlowRig(pods=1)
    for number in range(12):
        rig.send("pod-0", str(number), rig.words(100))
        if number % 3 == 2 and answer == "finished":
            rig.end(str(number))
        elif answer == "invalid":
            refuse(rig, str(number), None)
        else:
            refuse(rig, str(number), served=answer != "proxys-own")
    assert rig.come("next") == "pod-0"
