"""Producers: sessions, loads with output, second indexes, predicted latencies."""

import gc
import tracemalloc
from collections.abc import Iterable

import pytest

from epp.config.file import load
from epp.config.prefix_caches import ApproxProducer
from epp.model.endpoint import EndpointId, Load
from epp.model.events import EndpointRemoved, EndpointUpserted, Event, LoadReported
from epp.model.listeners import Listener
from epp.model.request import RequestId, Usage
from epp.model.request_events import Aborted, Admitted, Finished, FirstToken
from epp.policy.attribute_sources import (
    FROM_FLEET,
    InFlightLoad,
    LatencyPredictionInfo,
    PrefixMatchInfo,
)
from epp.policy.conformance import SELECTION
from epp.policy.producers.identity import AgentIdentity, SessionIdProducer
from epp.policy.producers.in_flight_load import InFlightLoadProducer
from epp.policy.producers.lru_prefixes import LruPrefixes
from epp.policy.producers.predicted_latency import TimePerToken
from epp.policy.scheduler import Scheduler
from tests.model.rig import Rig
from tests.policy.routing import routed
from tests.policy.started import Context
from tests.strategies import candidate, endpoint, request, text


class Desk:
    """A scheduler over a fleet, by a configuration whose second plug-in picks."""

    def __init__(self, plugins, pods=2):
        self.rig = Rig(pods)
        settings = load(f"plugins: [{plugins}, {{type: least-request-picker}}]")
        self.plugins = settings.scheduling
        self.scheduler = Scheduler(self.rig.fleet, settings.scheduling, lambda _: 0)

    def route(self, identity, *texts, **more):
        return routed(self.scheduler, request(identity, *texts, **more), self.rig.now)


@pytest.mark.parametrize(
    ("parameters", "headers", "session"),
    [
        ({"header_name": " X-Session "}, {"x-session": " s1 "}, "s1"),
        ({"header_name": "x-session"}, {}, ""),
        ({"cookie_name": "sid"}, {"cookie": "a=b; sid=s2; c"}, "s2"),
        ({"cookie_name": "sid"}, {"cookie": "xsid=1;sid"}, ""),
        ({"cookie_name": "sid"}, {"cookie": "sid=" + "x" * 999}, "x" * 256),
    ],
)
def test_a_session_is_read_from_a_header_or_a_cookie(parameters, headers, session):
    assert SessionIdProducer(**parameters).session_id(request(headers=headers)) == session


@pytest.mark.parametrize("names", [("", ""), ("a", "b"), ("", " ")])
def test_exactly_one_source_of_sessions_is_wanted(names):
    with pytest.raises(ValueError, match="exactly one"):
        SessionIdProducer(*names)


@pytest.mark.parametrize(
    ("headers", "fairness", "flow", "session"),
    [
        ({"x-claude-code-session-id": "c", "session-id": "d"}, "default-flow", "c", "c"),
        ({"session_id": "old"}, "default-flow", "old", "old"),
        ({"x-mine": "m", "session-id": "d"}, "default-flow", "m", "m"),
        (
            {"session-id": "d", "x-gateway-inference-fairness-id": ""},
            "default-flow",
            "default-flow",
            "d",
        ),
        ({"session-id": "d"}, "named", "named", "d"),
        ({}, "named", "named", ""),
        ({}, "default-flow", "default-flow", ""),
        ({"user-agent": "d"}, "default-flow", "default-flow", ""),
    ],
)
def test_an_agents_session_is_its_flow_unless_a_header_names_one(headers, fairness, flow, session):
    plugin = AgentIdentity(["X-Mine"])
    asked = plugin.process_request(request(headers=headers, fairness_id=fairness))
    assert asked.fairness_id == flow
    assert plugin.session_id(asked) == session


COUNTING = "{type: inflight-load-producer, parameters: {addEstimatedOutputTokens: true, %s}}"


def counted(desk, *names):
    (producer,) = [each for each in desk.plugins.commit_observers if isinstance(each, InFlightLoad)]
    asked = [candidate(name, prompt_tokens=100, cached_tokens=40) for name in names]
    return producer.in_flight(request(), asked)


def test_estimated_output_counts_until_the_response_ends():
    desk = Desk(COUNTING % "outputRatio: 2, maxEstimatedOutputTokens: 1500")
    first = desk.route("a", text(1000))
    assert desk.route("b", text(200, "other"), max_tokens=50).endpoint.name == "pod-1"
    # 1,000 uncached and min(2 x 1,000, 1,500) estimated; 200 and min(400, 50 of the client).
    assert [each.tokens for each in counted(desk, "pod-0", "pod-1")] == [2500, 250]
    assert counted(desk, "pod-0")[0].uncached == 60
    desk.rig.apply(FirstToken(RequestId("a")))
    assert counted(desk, first.endpoint.name)[0].tokens == 2500
    last = desk.route("c", text(200, "another"), max_tokens=50)
    desk.rig.apply(Finished(RequestId("a"), Usage(1000, 10)))
    desk.rig.apply(Aborted(RequestId("b")))
    assert counted(desk, last.endpoint.name)[0].tokens == 250
    desk.rig.apply(Aborted(RequestId("c")))
    assert [each.tokens for each in counted(desk, "pod-0", "pod-1")] == [0, 0]


DISAGGREGATED = """
plugins:
- {type: inflight-load-producer, parameters: {addEstimatedOutputTokens: true}}
- {type: always-disagg-pd-decider}
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
- {type: header-based-testing-filter}
- {type: least-request-picker}
- {type: round-robin-picker}
schedulingProfiles:
- {name: decode, plugins: [{pluginRef: header-based-testing-filter}]}
- {name: prefill, plugins: [{pluginRef: round-robin-picker}]}
"""


@pytest.mark.parametrize("end", [Finished(RequestId("a")), Aborted(RequestId("a"))])
def test_a_prefill_elsewhere_counts_there_until_the_first_token(end):
    rig, settings = Rig(2), load(DISAGGREGATED)
    desk = Scheduler(rig.fleet, settings.scheduling, lambda _: 0)
    (producer,) = settings.scheduling.commit_observers
    assert isinstance(producer, InFlightLoad)
    asked = [candidate(name) for name in ("pod-0", "pod-1")]
    headers = {SELECTION: "10.0.0.2"}
    routed(desk, request("a", text(1000), headers=headers, max_tokens=70), rig.now)
    assert [each.tokens for each in producer.in_flight(request(), asked)] == [1000, 70]
    rig.fleet.apply(FirstToken(RequestId("a")), rig.now)
    assert [each.tokens for each in producer.in_flight(request(), asked)] == [0, 70]
    rig.fleet.apply(end, rig.now)
    assert [each.tokens for each in producer.in_flight(request(), asked)] == [0, 0]


def test_without_outputs_the_fleets_ledgers_count():
    settings = load("plugins: [{type: inflight-load-producer}, {type: queue-scorer}]")
    assert settings.scheduling.commit_observers == ()


@pytest.mark.parametrize("wrong", [{"output_ratio": -1}, {"max_estimated_output_tokens": -5}])
def test_less_than_nothing_is_refused(wrong):
    with pytest.raises(ValueError, match=", below 0; write"):
        InFlightLoadProducer(**wrong)


def seen_at(index, rig, *texts):
    found = list(rig.ask(*texts).values())
    return [match.matched for match in index.prefix_matches(request(), found)]


@pytest.mark.parametrize(("entries", "block"), [(4, 16), (2, 128)])
def test_a_second_index_holds_what_was_sent_as_far_as_it_has_room(entries, block):
    rig = Rig(0)
    context = Context(fleet=rig.fleet)
    context.first_of_its_type = False
    index = ApproxProducer(
        auto_tune=False, lru_capacity_per_server=entries, block_size_tokens=block
    ).start(context)
    for number in range(2):
        rig.add(f"pod-{number}", f"10.0.0.{number + 1}")
    rig.send("pod-0", "a", text(256))
    assert seen_at(index, rig, text(256)) == [256, 0]
    rig.send("pod-0", "b", text(128, "other"))  # two entries more: the head of `a` goes
    assert seen_at(index, rig, text(256)) == [0, 0]
    assert seen_at(index, rig, text(128, "other")) == [128, 0]
    rig.apply(EndpointRemoved(EndpointId("default/pod-0")))
    assert seen_at(index, rig, text(128, "other")) == [0]


def test_a_second_index_counts_tokens_although_blocks_grow():
    rig = Rig(0)
    index = LruPrefixes(Context(fleet=rig.fleet), 1000, auto_tune=False)
    rig.add("pod-0", "10.0.0.1")
    rig.send("pod-0", "a", text(1024))
    # ADR 2: a block ends after 4,096 bytes of text, which are 1,024 tokens.
    assert seen_at(index, rig, text(1024) + text(30 * 1024, "other")) == [1024]


def test_a_second_index_has_the_whole_of_a_repeated_prompt_that_ends_a_block():
    rig, ids = Rig(0, token_block=16), list(range(1024))
    index = LruPrefixes(Context(fleet=rig.fleet), 1000, auto_tune=False)
    rig.add("pod-0", "10.0.0.1")
    rig.send("pod-0", "a", ids)
    (found,) = index.prefix_matches(request(), list(rig.ask(ids).values()))
    assert found.ratio == 1


def test_a_second_index_has_what_was_prefilled_at_another_endpoint_twice():
    rig = Rig(0)
    index = LruPrefixes(Context(fleet=rig.fleet), 4, auto_tune=False)
    for number in range(3):
        rig.add(f"pod-{number}", f"10.0.0.{number + 1}")
    ids = [EndpointId(f"default/pod-{number}") for number in (0, 2)]
    rig.apply(Admitted(rig.quote("a", text(256)), *ids))
    assert seen_at(index, rig, text(256)) == [256, 0, 256]


def test_a_second_index_has_the_size_that_was_reported_before_its_first_prompt():
    rig = Rig(0)
    index = LruPrefixes(Context(fleet=rig.fleet), 1, auto_tune=True)
    rig.add("pod-0", "10.0.0.1")
    rig.apply(LoadReported(EndpointId("default/pod-0"), Load(num_blocks=8, block_size=16)))
    rig.send("pod-0", "a", text(512))
    assert seen_at(index, rig, text(512)) == [512]


class Collecting(Context):
    """Has no fleet: its listeners are called by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners: list[Listener] = []

    def subscribe(self, _: Iterable[type[Event]], listener: Listener) -> None:
        self.listeners.append(listener)


def test_a_second_index_that_is_full_takes_no_more_memory():
    rig, context = Rig(0), Collecting()
    LruPrefixes(context, 8, auto_tune=False)
    context.listeners[0](EndpointUpserted(endpoint("pod-0", "10.0.0.1")), 0, False)
    pod = EndpointId("default/pod-0")
    sent = [Admitted(rig.quote(name, text(4096, name)), pod) for name in map(str, range(400))]
    taken = []
    tracemalloc.start()
    try:
        for number, event in enumerate(sent, 1):
            context.listeners[0](event, 0, False)
            if number % 200 == 0:
                gc.collect()
                taken.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert taken[1] < 1.1 * taken[0]


TIERS = """
plugins:
- {type: approx-prefix-cache-producer, name: gpu}
- type: approx-prefix-cache-producer
  name: cpu
  parameters: {autoTune: false, lruCapacityPerServer: 10000}
- {type: prefix-cache-scorer, name: on-gpu, parameters: {prefixMatchInfoProducerName: gpu}}
- {type: prefix-cache-scorer, name: on-cpu, parameters: {prefixMatchInfoProducerName: cpu}}
"""


def test_of_two_producers_the_first_is_the_fleets_index():
    settings = load(TIERS)
    assert isinstance(FROM_FLEET, PrefixMatchInfo)
    kinds = {kind for each in settings.scheduling.subscriptions for kind in each.kinds}
    assert {"Admitted", "EndpointRemoved", "EndpointUpserted"} == {each.__name__ for each in kinds}


def test_time_per_token_is_a_line_over_what_runs():
    model = TimePerToken()
    assert model.seconds(0) == pytest.approx(0.006)
    assert model.seconds(100) == pytest.approx(0.008)
    for running in [1, 10, 20, 40] * 200:
        model.learn(running, 0.01 + 0.0005 * running)
    assert model.seconds(30) == pytest.approx(0.025, rel=0.01)
    for running in [1, 50] * 300:
        model.learn(running, 0.02 - 0.0002 * running)  # noise: more requests are never faster
    assert model.seconds(100) == pytest.approx(model.seconds(1))


@pytest.mark.parametrize(("prompts", "n"), [(1, 1), (1, 4), (3, 2)])
def test_latencies_are_predicted_and_learned(prompts, n):
    desk = Desk("{type: predicted-latency-producer, parameters: {sloBufferFactor: 0.5}}", pods=1)
    (producer,) = desk.plugins.commit_observers
    assert isinstance(producer, LatencyPredictionInfo)
    asked = [
        candidate(queued_prefill_seconds=0.1, prefill_seconds=0.05, decode_seconds=0.01, requests=3)
    ]
    headers = {"x-slo-ttft-ms": "400", "x-llm-d-slo-tpot-ms": "nan"}
    (found,) = producer.latencies(request(headers=headers), asked)
    assert found is not None
    # 100 + 50 + 10 ms against half of 400; a step of 6 ms and 20 us for one that runs.
    assert found.ttft == pytest.approx(160)
    assert found.ttft_headroom == pytest.approx(40)
    assert found.tpot == pytest.approx(6.02)
    assert found.tpot_headroom == pytest.approx(-6.02)
    assert (found.dispatched, found.valid) == (3, True)
    for number in range(50):
        identity = f"r{number}"
        desk.route(identity, *[text(10)] * prompts, n=n)
        desk.rig.apply(FirstToken(RequestId(identity)))
        desk.rig.now += 9.9
        desk.rig.apply(Finished(RequestId(identity), Usage(10, prompts * n * 100)))
    (found,) = producer.latencies(request(headers=headers), asked)
    assert found is not None
    assert found.tpot == pytest.approx(100, rel=0.05)
