"""The scheduler: bursts spread or stick as the cost says, and what is predicted is booked."""

from collections import Counter

import pytest

from epp.config.file import POLICIES, load
from epp.errors import NoEndpoints, NotCached, Overloaded, UnknownModel
from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved, EndpointUpserted, ModelsListed
from epp.model.request import Api, RequestId
from epp.model.request_events import Aborted, Failure, Finished, FirstToken, ResponseNamed
from epp.policy.scheduler import Scheduler
from epp.values import replaced
from tests.model.rig import Rig
from tests.policy.routing import routed
from tests.strategies import endpoint, request, text


def below(_):
    return 0


class Desk:
    """A scheduler over a fleet of `pods`."""

    def __init__(self, policy="least-ttft", pods=4):
        self.rig = Rig(pods)
        self.scheduler = Scheduler(
            self.rig.fleet, load(POLICIES.get(policy, policy)).scheduling, below
        )

    def route(self, identity, *texts, **more):
        return routed(self.scheduler, request(identity, *texts, **more), self.rig.now)

    def burst(self, count, *texts, prefix="r"):
        picked = [self.route(f"{prefix}{number}", *texts) for number in range(count)]
        return Counter(each.endpoint.name for each in picked)

    def settle(self, count, prefix="r"):
        for number in range(count):
            for kind in (FirstToken, Finished):
                self.rig.fleet.apply(kind(RequestId(f"{prefix}{number}")), self.rig.now)


def test_without_endpoints_the_error_says_so():
    desk = Desk(pods=0)
    with pytest.raises(NoEndpoints, match="no endpoint is ready") as raised:
        desk.route("r1", "x")
    assert raised.value.retry_after == 1


@pytest.mark.parametrize(
    ("subset", "said"), [((), "none at all"), (("1.2.3.4", "5.6.7.8:9"), "1.2.3.4, 5.6.7.8:9")]
)
def test_a_subset_without_endpoints_is_named_in_the_error(subset, said):
    with pytest.raises(NoEndpoints, match=f"none of the pool's 4 endpoints .* {said}"):
        Desk().route("r1", "x", subset=subset)


def test_a_request_goes_where_it_fits_although_it_is_cached_elsewhere():
    desk = Desk(pods=2)
    ids = list(range(4000))
    desk.rig.serve("pod-0", "before", ids)
    assert desk.route("r1", ids, max_tokens=100).endpoint.name == "pod-0"
    for pod, limit in enumerate((4096, 8192)):
        event = ModelsListed(EndpointId(f"default/pod-{pod}"), frozenset("m"), {"m": limit})
        desk.rig.fleet.apply(event, desk.rig.now)
    assert desk.route("r2", ids, max_tokens=96).endpoint.name == "pod-0"
    assert desk.route("r3", ids, max_tokens=97).endpoint.name == "pod-1"


CANARY = """
plugins:
- {type: label-selector-filter, parameters: {matchLabels: {track: canary}}}
- {type: random-picker}
"""


def test_an_endpoint_that_is_left_out_is_asked_where_the_filters_want_no_other():
    desk = Desk(CANARY, pods=2)
    desk.rig.add("pod-2", "10.0.0.3", labels={"track": "canary"})
    for number in range(5):
        assert desk.route(f"r{number}", "x").endpoint.name == "pod-2"
        desk.rig.now += 1
        failed = Aborted(RequestId(f"r{number}"), refused=True, failure=Failure.GATEWAY)
        desk.rig.fleet.apply(failed, desk.rig.now)
    assert [pod.may_be_picked for pod in desk.rig.fleet.pods.values()] == [True, True, False]
    assert desk.route("again", "x").endpoint.name == "pod-2"


def test_a_model_that_no_endpoint_has_is_unknown_once_all_have_said_theirs():
    desk = Desk(pods=2)

    def listed(pod, *models):
        event = ModelsListed(EndpointId(f"default/pod-{pod}"), frozenset(models))
        desk.rig.fleet.apply(event, desk.rig.now)

    listed(0, "one")
    assert desk.route("r1", "x", target_model="two")
    listed(1, "one", "adapter")
    assert desk.route("r2", "x", target_model="adapter")
    assert desk.route("r3", "x", model="", target_model="")
    with pytest.raises(UnknownModel, match="`two` does not exist"):
        desk.route("r4", "x", target_model="two")
    with pytest.raises(UnknownModel):
        desk.route("r5", "x", model="one", target_model="two")
    assert desk.route("r6", "x", model="two", target_model="one")


@pytest.mark.parametrize(
    ("prefer", "refused"),
    [
        ("if-available", True),
        (" wait=5 , If-Available;p=v", True),
        ("if-available-but-different", False),
        ("return=minimal", False),
    ],
)
def test_who_prefers_a_cached_prefix_is_refused_without_one(prefer, refused):
    desk = Desk()
    words = text(4000)
    asking = {"headers": {"prefer": prefer}, "api": Api.CHAT}
    if refused:
        with pytest.raises(NotCached):
            desk.route("r1", words, **asking)
        assert not desk.rig.fleet.in_flight
    first = desk.route("r2", words)
    desk.rig.now += 60
    desk.settle(3)
    again = desk.route("r3", words, **asking)
    assert again.endpoint == first.endpoint
    assert desk.route("r4", words, headers={"prefer": prefer}, api=Api.OTHER)


class Stored(Desk):
    """A desk at which `pod` has the response resp_1, and is the last that others would go to."""

    def __init__(self, policy="least-ttft", pods=4, pod="pod-2", labels=None):
        super().__init__(policy, pods)
        if labels is not None:
            self.rig.add(pod, "10.0.0.9", labels=labels)
        self.rig.send(pod, "first", text(400))
        self.rig.apply(ResponseNamed(RequestId("first"), "resp_1"))
        self.rig.serve("pod-0", "warm", text(4000, "warm"))
        for number in range(20):
            self.rig.send(pod, f"busy{number}", text(4000, f"{number}"))

    def follow_up(self, identity="again", *texts, previous="resp_1", **more):
        asked = {"api": Api.RESPONSES, "response_id": previous, **more}
        return self.route(identity, *(texts or (text(4000, "warm"),)), **asked)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_follow_up_goes_where_the_response_is(policy):
    desk = Stored(policy)
    for number in range(8):
        assert desk.follow_up(f"again{number}").endpoint.name == "pod-2"
    assert desk.follow_up("get", api=Api.OTHER).endpoint.name == "pod-2"


def test_one_whose_response_nobody_has_goes_where_any_other_does():
    desk = Stored()
    assert desk.follow_up("r1", previous="").endpoint.name == "pod-0"
    assert desk.follow_up("r2", previous="resp_9").endpoint.name == "pod-0"


@pytest.mark.parametrize(
    "change",
    [
        EndpointRemoved(EndpointId("default/pod-2")),
        EndpointUpserted(endpoint("pod-2", "10.0.0.7")),
        EndpointUpserted(endpoint("pod-2", "10.0.0.3", uid="another")),
    ],
)
def test_the_response_of_an_engine_that_is_gone_is_nowhere(change):
    desk = Stored()
    desk.rig.apply(change)
    assert desk.follow_up().endpoint.name != "pod-2"


def test_the_same_engine_under_other_labels_still_has_it():
    desk = Stored()
    desk.rig.add("pod-2", "10.0.0.3", labels={"track": "canary"})
    assert desk.follow_up().endpoint.name == "pod-2"


def test_a_follow_up_goes_no_further_than_the_filters_and_the_subset_allow():
    desk = Stored(CANARY, labels={"track": "canary"}, pod="pod-7")
    desk.rig.add("pod-8", "10.0.0.10", labels={"track": "canary"})
    assert [desk.follow_up(f"r{n}").endpoint.name for n in range(4)] == ["pod-7"] * 4
    elsewhere = Stored(CANARY)
    elsewhere.rig.add("pod-8", "10.0.0.10", labels={"track": "canary"})
    assert elsewhere.follow_up().endpoint.name == "pod-8"
    assert Stored().follow_up(subset=("10.0.0.2",)).endpoint.name == "pod-1"


def test_an_endpoint_that_is_left_out_is_not_asked_for_its_responses():
    desk = Stored()
    for number in range(5):
        failed = Aborted(RequestId(f"busy{number}"), refused=True, failure=Failure.GATEWAY)
        desk.rig.apply(failed)
    assert not desk.rig.pod("pod-2").may_be_picked
    assert desk.follow_up().endpoint.name == "pod-0"


def test_an_endpoint_that_left_is_not_picked():
    desk = Desk(pods=2)
    desk.rig.fleet.apply(EndpointRemoved(EndpointId("default/pod-0")), desk.rig.now)
    assert desk.burst(5, text(100)) == {"pod-1": 5}


def test_different_long_prompts_spread():
    desk = Desk()
    picked = Counter(desk.route(f"r{n}", text(3000, f"{n}")).endpoint.name for n in range(8))
    assert set(picked.values()) == {2}


def test_a_burst_of_one_long_prompt_sticks_to_where_it_is_computed():
    """Once it is computed, each more costs a step there, and a prefill anywhere else."""
    desk = Desk()
    desk.route("first", text(3000))
    desk.rig.fleet.apply(FirstToken(RequestId("first")), desk.rig.now)
    assert desk.burst(6, text(3000)) == {desk.route("r", text(3000)).endpoint.name: 6}


def test_a_burst_of_short_prompts_spreads():
    picked = Desk().burst(8, "hello")
    assert set(picked.values()) == {2}


def test_a_warm_endpoint_loses_when_its_queue_costs_more_than_its_cache_saves():
    desk = Desk(pods=2)
    desk.route("r0", text(2000))
    desk.settle(1)
    assert desk.route("again", text(2000)).endpoint.name == "pod-0"
    desk.rig.send("pod-0", "foreign", text(30_000, "other"))
    assert desk.route("elsewhere", text(2000)).endpoint.name == "pod-1"


def test_the_ledger_gets_what_was_predicted():
    desk = Desk()
    for number in range(12):
        wanted = [text(700)] if number % 3 else [text(700), text(200, f"{number}")]
        before = desk.rig.queued_seconds()
        decision = desk.route(f"r{number}", *wanted)
        name = decision.endpoint.name
        in_flight = desk.rig.in_flight(f"r{number}")
        assert in_flight.cached == decision.predicted_cached_tokens
        assert in_flight.quote.tokens == decision.prompt_tokens
        chosen = next(each for each in decision.candidates if each.endpoint.name == name)
        assert decision.predicted_ttft == pytest.approx(
            before[name] + chosen.prefill_seconds + chosen.decode_seconds
        )
        assert desk.rig.queued_seconds()[name] == pytest.approx(
            before[name] + chosen.prefill_seconds + chosen.decode_seconds
        )
        if number % 2:
            desk.rig.fleet.apply(FirstToken(in_flight.quote.request_id), desk.rig.now)


def test_decide_changes_nothing_and_commit_admits():
    desk, wanted = Desk(pods=2), request("r1", text(3000))
    fleet, now = desk.rig.fleet, desk.rig.now
    quote = desk.scheduler.quote(wanted, now)
    first = desk.scheduler.decide(wanted, quote, now)
    assert (fleet.indexed_blocks, quote.request_id in fleet.in_flight) == (0, False)
    assert set(desk.rig.queued_seconds().values()) == {0}
    desk.scheduler.commit(wanted, quote, first, now)
    assert quote.request_id in fleet.in_flight
    assert desk.rig.queued_seconds()[first.endpoint.name] == pytest.approx(first.predicted_ttft)


def test_a_held_request_is_decided_on_as_things_are_by_then():
    desk, wanted = Desk(pods=2), request("held", text(3000))
    quote = desk.scheduler.quote(wanted, desk.rig.now)
    stripped = replaced(wanted, prompts=())
    desk.rig.serve("pod-1", "other", text(3000))
    desk.rig.now += 300
    assert desk.scheduler.decide(stripped, quote, desk.rig.now).endpoint.name == "pod-1"
    desk.rig.fleet.apply(EndpointRemoved(EndpointId("default/pod-1")), desk.rig.now)
    decision = desk.scheduler.decide(stripped, quote, desk.rig.now)
    assert (decision.endpoint.name, decision.predicted_cached_tokens) == ("pod-0", 0)
    desk.rig.fleet.apply(EndpointRemoved(EndpointId("default/pod-0")), desk.rig.now)
    with pytest.raises(NoEndpoints):
        desk.scheduler.decide(stripped, quote, desk.rig.now)
    desk.scheduler.commit(stripped, quote, decision, desk.rig.now)  # too late: it changes nothing
    assert quote.request_id not in desk.rig.fleet.in_flight


def test_round_robin_goes_round():
    assert Desk("round-robin").burst(8, text(500)) == {f"pod-{n}": 2 for n in range(4)}


def test_least_request_evens_out():
    assert Desk("least-request").burst(8, text(500)) == {f"pod-{n}": 2 for n in range(4)}


def test_llm_d_routers_default_sticks_to_the_prefix():
    desk = Desk("linear")
    first = desk.route("r", text(500)).endpoint.name
    assert desk.burst(5, text(500)) == {first: 5}


def test_requests_of_negative_priority_are_refused_while_the_pool_is_full():
    desk = Desk(pods=2)
    for waiting, name in ((4, "pod-0"), (5, "pod-1")):  # (4/5 + 5/5) / 2 = 0.9 of the limit
        desk.rig.report(name, waiting=waiting, at=desk.rig.now)
    assert desk.route("r1", "x", priority=-1).endpoint
    desk.rig.report("pod-0", waiting=6, at=desk.rig.now)  # one of these was sent above
    with pytest.raises(Overloaded, match=r"of its limit.*priority -1") as raised:
        desk.route("r2", "x", priority=-1)
    assert (raised.value.status, raised.value.dropped_reason) == (429, "rejected-saturated")
    assert desk.route("r3", "x", priority=0).endpoint
    assert RequestId("r2") not in desk.rig.fleet.in_flight


def test_a_configurations_own_detector_counts():
    text = """
plugins:
- {type: concurrency-detector, parameters: {maxConcurrency: 2}}
- {type: least-request-picker}
schedulingProfiles: [{name: p, plugins: [{pluginRef: least-request-picker}]}]
flowControl: {saturationDetector: {pluginRef: concurrency-detector}}
"""
    rig = Rig(1)
    scheduler = Scheduler(rig.fleet, load(text).scheduling, below)
    for identity in ("a", "b"):
        routed(scheduler, request(identity, priority=-1), rig.now)
    with pytest.raises(Overloaded):
        routed(scheduler, request("c", priority=-1), rig.now)
    routed(scheduler, request("d"), rig.now)
