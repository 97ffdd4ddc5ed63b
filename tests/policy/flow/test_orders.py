"""Ordering and fairness policies, by the order in which requests go."""

import pytest

from epp.config.plugins import Plugins
from epp.config.schema import PluginSpec
from epp.model.decision import Decision
from epp.model.endpoint import EndpointId
from epp.model.request import Usage
from epp.model.request_events import Aborted, Finished
from epp.policy.flow.line import MAX_FLOWS, OTHER_FLOWS, Line
from tests.policy.flow.flow_rig import FlowRig
from tests.policy.flow.test_other_lines import A, held
from tests.strategies import request

ONE_AT_ONCE = """
featureGates: [flowControl]
plugins:
- {{type: least-ttft-picker}}
- {{type: concurrency-detector, parameters: {{maxConcurrency: 1}}}}
- {{type: program-aware-fairness, name: turns, parameters: {{strategy: turn-priority}}}}
schedulingProfiles: [{{name: default, plugins: [{{pluginRef: least-ttft-picker}}]}}]
flowControl:
  saturationDetector: {{pluginRef: concurrency-detector}}
  defaultPriorityBand: {{{band}}}
"""


def queued(band, *requests):
    """A rig in which one request runs, and others wait: `(name, seconds after, more)`."""
    rig = FlowRig(pods=1, policy=ONE_AT_ONCE.format(band=band), holds=False)
    rig.come("first", 10)
    for name, after, more in requests:
        rig.wait(after)
        rig.come(name, **{"tokens": 10, **more})
    return rig


def order(rig):
    """The names of those that wait as they go, one after the other."""
    running, went = "first", []
    while rig.held:
        rig.end(running)
        (running,) = rig.release()
        went.append(running)
    return went


def due(milliseconds):
    return {"headers": {"x-llm-d-slo-ttft-ms": str(milliseconds)}}


@pytest.mark.parametrize(
    ("policy", "went"),
    [
        ("", ["c", "b", "a"]),
        ("orderingPolicyRef: fcfs-ordering-policy", ["a", "b", "c"]),
        ("orderingPolicyRef: edf-ordering-policy", ["a", "b", "c"]),
        ("orderingPolicyRef: slo-deadline-ordering-policy", ["c", "b", "a"]),
    ],
)
def test_orders(policy, went):
    rig = queued(
        policy,
        ("a", 0, {"tokens": 9000}),
        ("b", 0.1, {"tokens": 5000, **due(60_000)}),
        ("c", 0.1, {"tokens": 100, **due(30_000)}),
    )
    assert order(rig) == went


def test_those_without_an_objective_go_last_and_in_the_order_of_arrival():
    rig = queued(
        "orderingPolicyRef: slo-deadline-ordering-policy",
        ("a", 0, due("soon")),
        ("b", 0.1, due(-1)),
        ("c", 0.1, due(50_000)),
    )
    assert order(rig) == ["c", "a", "b"]


FLOOD = [(f"f{number}", 0.01, {"fairness_id": "flood"}) for number in range(4)]


@pytest.mark.parametrize(
    ("policy", "place"),
    [
        ("", 1),
        ("fairnessPolicyRef: round-robin-fairness-policy", 1),
        ("fairnessPolicyRef: global-strict-fairness-policy", 4),
        ("fairnessPolicyRef: program-aware-fairness", 1),
    ],
)
def test_one_that_comes_behind_a_flood(policy, place):
    rig = queued(policy, *FLOOD, ("polite", 0.01, {"fairness_id": "polite"}))
    assert order(rig).index("polite") == place


def test_flows_take_turns_by_their_names():
    rig = queued(
        "fairnessPolicyRef: round-robin-fairness-policy",
        *[(f"{flow}{number}", 0, {"fairness_id": flow}) for flow in "cab" for number in range(2)],
    )
    assert order(rig) == ["a0", "b0", "c0", "a1", "b1", "c1"]


def test_the_program_that_got_the_least_service_goes_first():
    rig = queued(
        "fairnessPolicyRef: program-aware-fairness",
        ("x1", 0, {"fairness_id": "x"}),
        ("x2", 0, {"fairness_id": "x"}),
        ("y1", 0, {"fairness_id": "y"}),
        ("y2", 0, {"fairness_id": "y"}),
    )
    rig.end("first")
    assert rig.release() == ["x1"]
    rig.end("x1", prompt=5000, generated=2000)
    assert rig.release() == ["y1"]
    rig.end("y1", prompt=10, generated=1)
    assert rig.release() == ["y2"]  # 12 tokens against 9,000
    assert rig.flow.line.next((EndpointId("another"),), rig.now) is None


def test_service_fades():
    rig = queued(
        "fairnessPolicyRef: program-aware-fairness",
        ("x1", 0, {"fairness_id": "x"}),
    )
    rig.end("first")
    rig.release()
    rig.end("x1", prompt=1000, generated=0)
    rig.wait(59 * 60)
    rig.come("y1", 10, fairness_id="y")
    rig.end("y1", prompt=100, generated=0)
    rig.come("runs", 10)
    rig.come("y2", 10, fairness_id="y")
    rig.come("x2", 10, fairness_id="x")
    rig.end("runs")
    assert rig.release() == ["x2"]


def test_the_program_that_is_farthest_on_goes_first_and_an_idle_one_begins_anew():
    rig = queued("fairnessPolicyRef: turns", ("x1", 0, {"fairness_id": "x"}))
    rig.end("first")
    assert rig.release() == ["x1"]
    rig.come("y1", 10, fairness_id="y")
    rig.come("x2", 10, fairness_id="x")
    rig.end("x1")
    assert rig.release() == ["x2"]
    rig.end("x2")
    assert rig.release() == ["y1"]
    rig.wait(121)
    rig.come("z", 10, fairness_id="z")
    rig.wait(0.5)
    rig.come("x3", 10, fairness_id="x")
    rig.end("y1")
    assert rig.release() == ["z"]


@pytest.mark.parametrize(
    ("program", "more", "since", "turns"),
    [
        ("x", {}, 220, 3),  # two that ended, the last at 100, and this one
        ("x", {}, 221, 1),
        ("x", {"turnPriorityInactivitySeconds": 10}, 111, 1),
        ("x", {"turnPriorityInactivitySeconds": 0}, 3000, 3),
        ("runs", {}, 3000, 2),  # a program with a request under way is not idle
        ("default-flow", {}, 100, 1),  # requests of any clients are no session
    ],
)
def test_turns_of_a_program_count_until_it_was_idle_for_long(program, more, since, turns):
    """As llm-d-router's: time in the line is not idle, and turns count again after one request."""
    name = "program-aware-fairness"
    parameters = {"strategy": "turn-priority", "turnPriorityTimeWeight": 0.25, **more}
    programs = Plugins([PluginSpec(name, parameters=parameters)], lambda _: 0)[name]
    for each, now in (("x", 0.0), ("x", 20.0), ("default-flow", 20.0), ("runs", 0.0)):
        asked = request(f"{each}{now}", [1], fairness_id=each)
        programs.committed(asked, Decision(endpoints=()), now)
        if each != "runs":
            programs.learn(Finished(asked.id), now + 80, False)
    waiting = held(fairness_id=program, since=since)
    assert programs.scores([waiting], since) == [turns]
    assert programs.scores([waiting], since + 1000) == [turns + 250]
    again = request("again", [1], fairness_id="x")
    programs.committed(again, Decision(endpoints=()), since)
    assert programs.scores([held(fairness_id="x", since=since)], since) == [4]


def test_programs_without_end_are_forgotten():
    name = "program-aware-fairness"
    limits = {"evictionTtlSeconds": 10, "evictionSweepSeconds": 1}
    programs = Plugins([PluginSpec(name, parameters=limits)], lambda _: 0)[name]
    decision = Decision(endpoints=())
    for number in range(30):
        asked = request(str(number), list(range(16)), fairness_id=str(number))
        programs.committed(asked, decision, float(number))
    assert [each.used_at for each in programs._programs.values()] == list(range(19, 30))


@pytest.mark.parametrize(("half_life", "left"), [(60, 1000), (0, 2000)])
def test_service_is_tokens_of_which_generated_ones_count_twice_and_halves_in_time(half_life, left):
    name = "program-aware-fairness"
    spec = PluginSpec(name, parameters={"lasHalfLifeSeconds": half_life})
    programs = Plugins([spec], lambda _: 0)[name]

    def serve(program, now, end, **more):
        asked = request(program, [1], fairness_id=program)
        programs.committed(asked, Decision(endpoints=(), prompt_tokens=200), now)
        programs.learn(end(asked.id, **more), now, False)

    serve("x", 0.0, Finished, usage=Usage(1000, 500, 0))
    serve("x", 60.0, Finished, usage=Usage(0, 0, 0))
    serve("y", 60.0, Finished, usage=Usage(left, 0, 0))
    serve("z", 60.0, Aborted, generated=(left - 200) // 2)
    new, *others = programs.scores([held(fairness_id=each) for each in ("new", *"xyz")], 60.0)
    assert new > others[0] == others[1] == others[2]


def test_flows_without_end_share_one_flow():
    rig = FlowRig(pods=1, holds=True, most_seconds=1e6)
    rig.come("first", 20_000)
    for number in range(MAX_FLOWS + 50):
        rig.come(str(number), 10, fairness_id=f"{'x' * 300}{number}" if number % 2 else str(number))
    rig.flow.line.forget(rig.held["0"].endpoint_id)
    names = {held.flow for held in rig.flow.line}
    assert max(map(len, names)) <= 256
    assert len(names) <= MAX_FLOWS + 1
    many = FlowRig(pods=1)
    many.come("first", 20_000)
    for number in range(MAX_FLOWS + 50):
        many.come(str(number), 10, fairness_id=str(number))
    flows = [held.flow for held in many.flow.line]
    assert flows.count(OTHER_FLOWS) == 50


def test_a_flow_that_was_idle_while_another_was_served_takes_turns_with_it():
    line = Line(0.1)
    for _ in range(5):
        served = held(fairness_id="x")
        line.assign_rank(served)
        served.work = 1.0
        line.charge(served)
    for name in ("x", "y1", "y2"):
        one = held(name, fairness_id=name[0])
        one.work = 1.0
        line.add(one)
    went = list[str]()
    while (one := line.next((A,), 0.0)) is not None:
        line.remove(one)
        line.charge(one)
        went.append(one.request.id)
    assert went == ["y1", "x", "y2"]


def test_flows_of_which_nothing_waits_make_room_unless_they_are_ahead():
    line, greedy = Line(0.1), held(fairness_id="greedy")
    line.assign_rank(greedy)
    greedy.work = 3.0
    line.charge(greedy)
    for number in range(2 * MAX_FLOWS):
        fresh = held(fairness_id=str(number))
        line.assign_rank(fresh)
        assert fresh.flow == str(number)
    assert line.ahead(greedy) == 3.0


def test_a_line_without_requests_has_none():
    line = Line(0.05)
    assert (list(line), line.requests, line.heads(0.0), line.next((), 0.0)) == ([], 0, [], None)


def test_of_requests_alike_at_several_endpoints_the_first_goes_first():
    rig = FlowRig(pods=2, policy=ONE_AT_ONCE.format(band=""), holds=False)
    for number in range(6):
        rig.come(str(number), 10)
    line, waiting = rig.flow.line, list(rig.held.values())
    for number, each in enumerate(waiting):
        line.move(each, EndpointId(f"default/pod-{number % 2}"), 0.1)
    places = [held.endpoint_id for held in waiting[:2]]
    assert line.next(places, rig.now) is line.next(places[::-1], rig.now) is waiting[0]
    assert line.heads(rig.now) == waiting[:2]
