"""Endpoints whose role is for parts of requests get no whole one, unless filters see to roles."""

import pytest

from epp.config.file import POLICIES, load
from epp.errors import NoEndpoints
from epp.model.events import EndpointUpserted, ScrapeFailed, ScrapeFailure
from epp.policy.scheduler import Scheduler
from tests.model.rig import Rig
from tests.strategies import endpoint, request


def rig(**roles):
    made = Rig(0)
    for number, (name, role) in enumerate(roles.items()):
        labels = {"llm-d.ai/role": role} if role else {}
        made.add(name, f"10.0.0.{number + 1}", labels=labels)
    return made


def picked(rig, policy, **more):
    scheduler = Scheduler(rig.fleet, load(policy).scheduling, lambda _: 0)
    found = scheduler.decide(request(**more), rig.quote("r"), rig.now)
    return [each.endpoint.name for each in found.candidates]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_no_ready_made_policy_sends_them_whole_requests(policy):
    fleet = rig(a="prefill", b="encode", c="encode-prefill", d="decode", e="both", f="")
    assert picked(fleet, policy) == ["d", "e", "f"]


@pytest.mark.parametrize(
    ("plugin", "kept"),
    [
        ("{type: prefill-filter}", ["a", "d"]),
        ("{type: label-selector-filter, parameters: {matchLabels: {llm-d.ai/role: encode}}}", "b"),
        ("{type: by-label, parameters: {label: llm-d.ai/role, allowsNoLabel: true}}", "f"),
        ("{type: by-label, parameters: {label: tier, allowsNoLabel: true}}", ["d", "f"]),
    ],
)
def test_a_filter_that_sees_roles_decides_itself(plugin, kept):
    fleet = rig(a="prefill", b="encode", d="prefill-decode", f="")
    assert picked(fleet, f"plugins: [{plugin}]") == list(kept)


def test_without_any_other_endpoint_the_client_gets_503():
    fleet = rig(a="prefill", b="encode")
    with pytest.raises(NoEndpoints, match="2 endpoints serves whole requests: their role is enc"):
        picked(fleet, POLICIES["linear"])
    assert picked(fleet, "plugins: [{type: prefill-filter}]") == ["a"]


def test_roles_change_and_the_reachable_come_first():
    fleet = rig(a="prefill", b="decode", c="decode")
    fleet.apply(ScrapeFailed(endpoint("b").id, ScrapeFailure.REFUSED))
    assert picked(fleet, POLICIES["linear"]) == ["c"]
    fleet.apply(ScrapeFailed(endpoint("c").id, ScrapeFailure.REFUSED))
    assert picked(fleet, POLICIES["linear"]) == ["b", "c"]
    fleet.apply(EndpointUpserted(endpoint("a", "10.0.0.1")))
    assert picked(fleet, POLICIES["linear"]) == ["a"]
    fleet.apply(EndpointUpserted(endpoint("a", "10.0.0.1", labels={"llm-d.ai/role": "encode"})))
    assert picked(fleet, POLICIES["linear"]) == ["b", "c"]


def test_within_a_subset():
    fleet = rig(a="prefill", b="decode", c="")
    scheduler = Scheduler(fleet.fleet, load(POLICIES["linear"]).scheduling, lambda _: 0)
    quote = fleet.quote("r", subset=("10.0.0.1", "10.0.0.3"))
    assert scheduler.decide(request(), quote, fleet.now).endpoint.name == "c"
