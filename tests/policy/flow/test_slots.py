"""How many requests an engine runs at once is learned from what waits in it without need."""

import pytest

from epp.model.request import RequestId
from epp.model.request_events import Unobserved
from epp.policy.flow.rooms import Axis
from tests.policy.flow.flow_rig import LONG, FlowRig


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


ALL_RUN = {"running_adapters": frozenset("ab"), "waiting_adapters": frozenset("ab")}
"""vLLM's `LoRARequestStates` names all adapters with requests as running and as waiting."""


@pytest.mark.parametrize(
    "seen",
    [{"stream": False}, ALL_RUN | {"max_adapters": 0}, ALL_RUN | {"max_adapters": 2}],
    ids=["responses that come whole", "adapters of unknown slots", "adapters"],
)
def test_slots_are_learned_whatever_else_is_seen(seen):
    rig = with_three_slots(**seen)
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


@pytest.mark.parametrize(("uid", "went"), [("", None), ("another", "pod-0")])
def test_slots_are_those_of_one_engine(uid, went):
    rig = with_three_slots()
    rig.add("pod-0", rig.pod("pod-0").endpoint.address, labels={"a": "b"}, uid=uid)
    rig.say("pod-0", running=3.0, waiting=1.0, kv_usage=0.1, counted=True)
    assert rig.come("next", 10) == went


@pytest.mark.parametrize(
    ("before", "restarted"),
    [({"started_at": 1.0}, {"started_at": 2.0}), ({"cache_queries": 9.0}, {"cache_queries": 1.0})],
)
def test_slots_are_learned_anew_once_an_engine_has_restarted(before, restarted):
    rig = with_three_slots(**before)
    for name in ("5", "6", "7", "8"):
        rig.abort(name)
    rig.say("pod-0", counted=True, **restarted)
    for number in range(8):
        assert rig.come(f"new {number}", 10, stream=True) == "pod-0"
        rig.begin(f"new {number}")


def test_each_answer_takes_a_slot():
    rig = with_three_slots()
    for name in ("5", "6", "7", "8"):
        rig.end(name, 10, 10)
    rig.say("pod-0", counted=True)
    assert [rig.come(each, 10, stream=True, n=4) for each in ("a", "b")] == ["pod-0", None]
    rig.begin("a")
    rig.say("pod-0", running=3.0, waiting=1.0, counted=True)
    assert rig.release() == []
    rig.end("a", 10, 40)
    assert rig.release() == ["b"]


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
