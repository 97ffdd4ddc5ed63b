"""Requests whose prompts one endpoint computes and another answers: where they go, or wait."""

from itertools import product

import pytest

from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved, ScrapeFailed, ScrapeFailure
from epp.model.request_events import Admitted
from epp.policy.flow.held import HeldRequest
from epp.policy.flow.rooms import Axis
from tests.policy.flow.flow_rig import FlowRig
from tests.strategies import request

STAGES = """
plugins:
- {type: prefill-filter}
- {type: decode-filter}
- {type: prefix-cache-scorer}
- {type: active-request-scorer}
- {type: max-score-picker}
- {type: always-disagg-pd-decider}
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
schedulingProfiles:
- name: prefill
  plugins:
  - {pluginRef: prefill-filter}
  - {pluginRef: prefix-cache-scorer, weight: 2}
  - {pluginRef: active-request-scorer}
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: active-request-scorer}]
"""
STEP = 0.05
"""Seconds between two requests."""


class StagesRig(FlowRig):
    """A rig of prefill endpoints p-0, ... and decode endpoints d-0, ...; the first one is best.

    `role` is that of the decode endpoints; p-0, ... may compute another `stage`.
    """

    def __init__(
        self, prefill=1, decode=1, role="decode", stage="prefill", policy=STAGES, **settings
    ):
        super().__init__(pods=0, policy=policy.replace("prefill", stage), **settings)
        roles = {f"p-{number}": stage for number in range(prefill)}
        roles |= {f"d-{number}": role for number in range(decode)}
        for number, (name, each) in enumerate(roles.items()):
            self.add(name, f"10.0.0.{number + 1}", labels={"llm-d.ai/role": each})
            self.say(name)

    def stages(self, identity):
        """Return the names of a sent request's prefill and decode endpoint; they may be one."""
        parts = self.in_flight(identity).parts
        return parts[-1].pod.endpoint.name, parts[0].pod.endpoint.name

    def meet(self, culprit, seconds):
        """Have a request come at each step that a culprit refuses, and others begin.

        Responses do not end, so the culprit has fewest requests. Returns how many it refused.
        """
        self.refusals, coming = 0, 0
        for coming in range(round(seconds / STEP)):
            self.come(str(coming), 10)
            self.answer(culprit)
            self.wait(STEP)
        self.wait(2)  # for two trials at most, one of each stage
        for _ in range(3):
            self.answer(culprit)
            self.wait(1.0)
        return self.refusals

    def answer(self, culprit):
        for pod in self.fleet.pods.values():
            self.say(pod.endpoint.name, running=pod.ledger.requests)
        self.release()
        for name, each in list(self.fleet.in_flight.items()):
            if each.began is None and culprit in self.stages(name):
                self.refuse(name)
                self.refusals += 1
            elif each.began is None:
                self.begin(name)


@pytest.mark.parametrize(
    ("prefill", "decode", "culprit"),
    [
        (prefill, decode, culprit)
        for prefill, decode, culprit in product([1, 2, 3], [1, 2, 3], ["p-0", "d-0"])
        if {"p": prefill, "d": decode}[culprit[0]] > 1
    ],
)
def test_one_that_refuses_all_gets_a_request_a_second_and_others_of_its_stage_the_rest(
    prefill, decode, culprit
):
    seconds = 10
    rig = StagesRig(prefill, decode)
    # Five at most at each endpoint that may be to blame, and then one each second.
    suspects = prefill if culprit[0] == "d" else decode
    assert rig.meet(culprit, seconds) <= 5 * (1 + suspects) + seconds + 5
    assert not rig.held


@pytest.mark.parametrize("decode", [1, 2, 3])
def test_while_prefill_endpoints_refuse_decode_endpoints_prefill_if_that_is_their_role(decode):
    seconds = 10
    rig = StagesRig(1, decode, role="prefill-decode")
    assert rig.meet("p-0", seconds) <= 5 * (1 + decode) + seconds + 5
    assert not rig.held


def test_while_one_refuses_another_decodes_what_is_encoded_at_the_same_endpoint():
    rig = StagesRig(1, 2, stage="encode")
    for number in range(5):
        rig.come(str(number), 10)
        assert rig.stages(str(number)) == ("p-0", "d-0")
        rig.refuse(str(number))
    rig.come("next", 10)
    assert rig.stages("next") == ("p-0", "d-1")


def test_without_others_of_either_stage_one_a_second_tries_both():
    rig = StagesRig()
    for number in range(5):
        assert rig.come(f"shed {number}", 10) == "d-0"
        rig.refuse(f"shed {number}")
    assert [rig.come(name, 10) for name in "abc"] == [None] * 3
    for name in "ab":
        assert rig.release() == []
        rig.wait(1.0)
        assert rig.release() == [name]
        rig.refuse(name)
    rig.wait(1.0)
    assert rig.release() == ["c"]
    rig.begin("c")
    assert [rig.come(name, 10) for name in "de"] == ["d-0", "d-0"]


def test_a_request_that_a_stage_has_no_other_endpoint_for_is_computed_nowhere_else():
    rig = StagesRig(decode=2)
    for number in range(5):
        rig.come(f"shed {number}", 10)
        rig.refuse(f"shed {number}")
    assert rig.come("next", 10) is None
    rig.apply(EndpointRemoved(EndpointId("default/p-0")))
    assert rig.release() == ["next"]
    assert len(rig.in_flight("next").parts) == 1


def gone(rig, name):
    rig.apply(ScrapeFailed(EndpointId(f"default/{name}"), ScrapeFailure.REFUSED))


def asleep(rig, name):
    rig.say(name, awake=False)


@pytest.mark.parametrize("become", [gone, asleep])
def test_while_all_prefill_endpoints_are_gone_or_sleep_decode_endpoints_do_all(become):
    rig = StagesRig(2, 1)
    become(rig, "p-0")
    rig.come("one is left", 10)
    assert rig.stages("one is left") == ("p-1", "d-0")
    become(rig, "p-1")
    rig.come("none is left", 10)
    assert rig.stages("none is left") == ("d-0", "d-0")
    rig.say("p-0")
    rig.come("one is back", 10)
    assert rig.stages("one is back") == ("p-0", "d-0")


def with_full(name, **settings):
    """Return a rig of two endpoints a stage, of which the best one of a stage has no memory."""
    rig = StagesRig(2, 2, **settings)
    for other in {"p-0", "p-1", "d-0", "d-1"} - {name}:
        rig.say(other, running=9.0, kv_usage=0.1)
    rig.say(name, running=1.0, kv_usage=1.0)
    return rig


@pytest.mark.parametrize(("full", "went"), [("d-0", ("p-0", "d-1")), ("p-0", ("p-1", "d-0"))])
def test_a_request_goes_elsewhere_if_the_best_endpoint_of_a_stage_is_full(full, went):
    rig = with_full(full)
    rig.come("next", 10)
    assert rig.stages("next") == went
    assert not rig.flow.would_wait


def test_a_request_waits_while_all_are_full_also_where_a_stage_takes_any_endpoint():
    rig = StagesRig(policy=STAGES.replace("{pluginRef: decode-filter}, ", ""))
    assert rig.come("before", 10) == "p-0"  # so that the next one's best is d-0
    for name in ("p-0", "d-0"):
        rig.say(name, running=1.0, kv_usage=1.0)
    assert rig.come("next", 10) is None
    for name in ("p-0", "d-0"):
        rig.say(name)
    assert rig.release() == ["next"]


def test_where_nothing_waits_what_would_go_elsewhere_goes_to_the_best():
    rig = with_full("d-0", holds=False)
    rig.come("next", 10)
    assert rig.stages("next") == ("p-0", "d-0")
    assert rig.flow.would_wait == {Axis.MEMORY: 1}


@pytest.mark.parametrize(("seconds", "goes"), [(5, []), (7, ["next"])])
def test_what_waits_for_a_late_prefill_endpoint_goes_to_another(seconds, goes):
    rig = StagesRig(2, 1)
    cached = rig.words(40_000)
    rig.flow.route(request("before", cached), rig.now)
    assert rig.stages("before") == ("p-0", "d-0")
    rig.begin("before")
    rig.end("before", 40_000)
    for each in ("hung", "behind"):
        quote = rig.quote(each, cached[:20_000] + rig.words(10_000))
        rig.apply(Admitted(quote, EndpointId("default/d-0"), EndpointId("default/p-0")))
    outcome = rig.flow.route(request("next", cached[:20_000] + rig.words(10_000)), rig.now)
    assert isinstance(outcome, HeldRequest)
    rig.held["next"] = outcome
    rig.wait(seconds)
    assert rig.release() == goes
    if goes:
        assert rig.stages("next") == ("p-1", "d-0")


FILTER = "{pluginRef: decode-filter}"
SESSIONS = STAGES.replace(FILTER, f"{FILTER}, {{pluginRef: session-affinity-filter}}").replace(
    "plugins:",
    "plugins:\n- {type: session-affinity-filter, parameters: {strategy: session_id}}",
    1,
)


def test_a_request_waits_where_a_filter_that_may_let_others_pass_wants_it():
    rig = StagesRig(decode=2, policy=SESSIONS)
    mine = {"x-session-id": "mine"}
    rig.come("first", 10, headers=mine)
    home = rig.stages("first")
    rig.end("first", 10)
    rig.say(home[1], running=2.0, kv_usage=1.0)
    assert rig.come("second", 10, headers=mine) is None
    assert rig.come("other", 10) is not None
    rig.say(home[1])
    assert rig.release() == ["second"]
    assert rig.stages("second") == home


PREFILL = "{pluginRef: prefill-filter}"
NEAR = STAGES.replace(PREFILL, f"{PREFILL}\n  - {{pluginRef: near}}").replace(
    "plugins:", "plugins:\n- {type: topology-affinity-filter, name: near}", 1
)


def test_a_request_goes_to_other_endpoints_that_are_near_to_each_other():
    rig = StagesRig(2, 2, policy=NEAR)
    for name in rig.ask():
        labels = {**rig.pod(name).endpoint.labels, "kubernetes.io/hostname": name[-1]}
        rig.add(name, rig.pod(name).endpoint.address, labels=labels)
        rig.say(name)
    rig.say("d-0", running=2.0, kv_usage=1.0)
    rig.come("next", 10)
    assert rig.stages("next") == ("p-1", "d-1")
