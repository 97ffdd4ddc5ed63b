"""Requests go elsewhere, or wait for the endpoint that is best for them."""

import pytest

from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved
from epp.model.request import RequestId
from epp.model.request_events import ResponseNamed
from epp.policy.flow.held import HeldRequest
from epp.policy.flow.rooms import Axis
from tests.policy.flow.flow_rig import LONG, FlowRig
from tests.strategies import request


def test_a_follow_up_waits_for_the_endpoint_that_has_the_response():
    rig = FlowRig()
    home = rig.come("first", LONG)
    rig.apply(ResponseNamed(RequestId("first"), "resp_1"))
    assert rig.come("follow-up", 1000, response_id="resp_1") is None
    rig.wait(0.1)
    assert rig.release() == []
    rig.begin("first")
    assert rig.release() == ["follow-up"]
    assert rig.sent["follow-up"] == home


SESSIONS = """
plugins:
- {type: session-affinity-scorer, parameters: {strategy: session_id}}
- {type: max-score-picker}
"""


def test_a_session_that_went_elsewhere_for_want_of_room_returns():
    rig = FlowRig(policy=SESSIONS)
    mine = {"x-session-id": "mine"}
    home = rig.come("first", 10, headers=mine)
    rig.end("first", 10)
    rig.say(home, running=2.0, kv_usage=1.0)
    assert rig.come("second", 10, headers=mine) not in {None, home}
    rig.say(home)
    assert rig.come("third", 10, headers=mine) == home


def test_a_session_whose_endpoint_is_removed_while_it_waits_stays_where_it_goes():
    rig = FlowRig(pods=3, policy=SESSIONS)
    mine = {"x-session-id": "mine"}
    home = rig.come("first", 10, headers=mine)
    rig.end("first", 10)
    full = {"running": 2.0, "kv_usage": 1.0}
    for name in rig.ask():
        rig.say(name, **full)
    assert rig.come("second", 10, headers=mine) is None
    rig.apply(EndpointRemoved(EndpointId(f"default/{home}")))
    rig.say("pod-2")
    assert rig.release() == ["second"]
    rig.say("pod-1")
    assert (home, rig.come("third", 10, headers=mine)) == ("pod-0", "pod-2")


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


def test_an_endpoint_of_unknown_room_does_not_draw_what_waits_for_others():
    rig = FlowRig()
    rig.say("pod-1", num_blocks=None)
    rig.send("pod-0", "large", rig.words(95_000), stream=True)
    rig.begin("large")
    went = [rig.come(str(number), 1000, stream=True) for number in range(30)]
    assert 0 < went.count("pod-1") < 10
    assert went[20:] == [None] * 10


def test_a_request_waits_for_the_cache_that_saves_it_a_prefill():
    rig, first = with_a_full_best_pod()
    held = rig.flow.route(request("next", [*first, *rig.words(100)]), rig.now)
    assert held.endpoint_id.endswith("pod-0")
    assert rig.flow.would_wait == {Axis.MEMORY: 1}
    assert rig.come("other", 100) == "pod-1"


@pytest.mark.parametrize("runs", [True, False])
def test_what_running_requests_hold_of_a_prompt_takes_memory_once(runs):
    rig = FlowRig(pods=1)
    document = rig.words(60_000)
    rig.flow.route(request("first", document, stream=True), rig.now)
    rig.begin("first")
    if not runs:  # its blocks are cached, but free
        rig.end("first", 60_000)
        rig.come("other", 45_000, stream=True)
        rig.begin("other")
    held = rig.flow.route(request("next", [*document, *rig.words(100)]), rig.now)
    assert isinstance(held, HeldRequest) is not runs


def test_what_running_requests_share_is_held_until_the_last_of_them_ends():
    rig = FlowRig(pods=1)
    rig.learn(4000)
    document = rig.words(50_000)
    rig.flow.route(request("first", document, stream=True, max_tokens=4000), rig.now)
    rig.begin("first")
    rig.go_on("first", 3900)
    went = 0
    for number in range(30):
        asked = request(str(number), [*document, *rig.words(100)], stream=True, max_tokens=4000)
        if isinstance(rig.flow.route(asked, rig.now), HeldRequest):
            break
        rig.begin(str(number))
        went += 1
    assert 5 < went <= 50_000 // 4100


def test_what_goes_elsewhere_at_once_counts_towards_its_clients_share():
    rig, first = with_a_full_best_pod()
    for name in "cba":
        asked = request(name, [*first, *rig.words(100)], fairness_id=name)
        rig.held[name] = rig.flow.route(asked, rig.now)
        if name == "c":
            assert rig.come("of b", 100, fairness_id="b") == "pod-1"
    rig.say("pod-0", running=2.0, kv_usage=0.1)
    assert rig.release() == ["a", "c", "b"]  # a and c got as little, and go by their names


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


def test_those_that_wait_at_an_endpoint_that_is_gone_go_to_another():
    rig = FlowRig(pods=2)
    rig.fill()
    rig.come("next", 10)
    at = rig.held["next"].endpoint_id
    rig.apply(EndpointRemoved(at))
    left = "first 0" if f"default/{rig.sent['first 0']}" != at else "first 1"
    rig.begin(left)
    assert rig.release() == ["next"]


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
