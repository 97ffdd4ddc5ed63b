"""Rollouts of disaggregated sets, by llm-d-router's rules."""

import pytest

from epp.config.file import load
from epp.errors import ConfigError, NoEndpoints
from epp.model.endpoint import EndpointId, Target
from epp.model.events import EndpointRemoved, EndpointUpserted
from epp.policy.scheduler import Scheduler
from tests.model.rig import Rig
from tests.policy.routing import routed
from tests.strategies import endpoint, request

REVISION, ROLE = "disaggregatedset.x-k8s.io/revision", "disaggregatedset.x-k8s.io/role"
SCOPE = "scope: {labelSelector: 'set=s'}"
ROLES = "requireRoles: {values: [prefill, decode]}"
HEADERS = f"""
{{name: revision, headerName: X-Revision, labelKey: {REVISION}, mode: strict}},
{{name: slice, headerName: x-slice, labelKey: slice, mode: prefer}}
"""
CONFIG = """
plugins:
- {{type: disaggregatedset-rollout-screener, parameters: {{{}}}}}
- {{type: random-picker}}
"""


def configured(mode="sum", more=f"headerSelectors: [{HEADERS}]"):
    gating = f"revisionGating: {{mode: {mode}, {ROLES}}}"
    return load(CONFIG.format(f"{SCOPE}, {gating}, {more}"), below=None)


class Pool:
    """Pods `revision-role-number` with labels of these; `draw` in 0..1 is what is drawn."""

    def __init__(self, *counts, settings=None, draw=0.0):
        self.rig = Rig(0)
        settings = settings or configured()
        (self.screener,) = settings.scheduling.screeners
        self.screener._below = lambda n: int(draw * n)
        self.scheduler = Scheduler(self.rig.fleet, settings.scheduling, lambda _: 0)
        for revision, role, count in counts:
            for number in range(count):
                self.add(revision, role, number)

    def add(self, revision, role, number, **more):
        name = f"{revision}-{role}-{number}"
        address = f"10.{ord(revision[-1])}.{len(role)}.{number + 1}"
        labels = {"set": "s", "slice": "7", REVISION: revision, ROLE: role, **more}
        self.rig.apply(EndpointUpserted(endpoint(name, address, labels=labels)))

    def left(self, **headers):
        found = self.rig.fleet.candidates(self.rig.quote("r"), self.rig.now)
        return {
            each.endpoint.name.rpartition("-")[0]
            for each in self.screener.screen(request(headers=headers), found)
        }

    @property
    def shares(self):
        return dict(self.screener.weights)


def roles_of(*revisions):
    return {f"{revision}-{role}" for revision in revisions for role in ("prefill", "decode")}


# The README's example: A has 2 prefill and 9 decode pods, B has 1 and 1.
AB = (("A", "prefill", 2), ("A", "decode", 9), ("B", "prefill", 1), ("B", "decode", 1))


@pytest.mark.parametrize(
    ("mode", "weights", "at"),
    [
        ("sum", {"A": 11, "B": 2}, 11 / 13),
        ("max-role", {"A": 9, "B": 1}, 9 / 10),  # decode: 10 of both, prefill: 3
    ],
)
def test_a_revision_is_drawn_by_its_pods(mode, weights, at):
    assert Pool(*AB, settings=configured(mode)).shares == weights
    for draw, revision in ((0.0, "A"), (at - 0.001, "A"), (at + 0.001, "B"), (0.999, "B")):
        pool = Pool(*AB, settings=configured(mode), draw=draw)
        assert pool.left() == roles_of(revision)


@pytest.mark.parametrize(
    ("more", "header"),
    [("", "x-llm-d-disagg-revision"), (", revisionHeaderName: X-Mine", "x-mine")],
)
def test_listed_roles_have_a_header_of_the_revision(more, header):
    gating = f"revisionGating: {{mode: max-role, requiredRoles: [prefill, decode]{more}}}"
    pool = Pool(*AB, settings=load(CONFIG.format(f"{SCOPE}, {gating}"), below=None))
    assert pool.shares == {"A": 9, "B": 1}
    assert pool.left() == roles_of("A")
    assert pool.left(**{header: "B"}) == roles_of("B")
    assert pool.left(**{header: "C"}) == set()
    decision = routed(pool.scheduler, request(), pool.rig.now)
    assert dict(pool.screener.response_headers(request(), decision, None)) == {header: "A"}


def test_empty_keys_of_labels_are_the_defaults():
    keys = "revisionLabelKey: '', roleLabelKey: ''"
    pool = Pool(*AB, settings=configured(f"sum, {keys}"))
    assert pool.shares == {"A": 11, "B": 2}
    assert pool.left() == roles_of("A")


def test_of_two_roles_with_as_many_pods_the_first_counts():
    pods = (("A", "prefill", 3), ("A", "decode", 1), ("B", "prefill", 1), ("B", "decode", 3))
    assert Pool(*pods, settings=configured("max-role")).shares == {"A": 3, "B": 1}


def test_a_revision_without_a_pod_of_a_role_gets_nothing():
    pool = Pool(("A", "prefill", 1), ("A", "decode", 1), ("B", "decode", 8), draw=0.999)
    assert pool.shares == {"A": 2}
    assert pool.left() == roles_of("A")
    assert pool.left(**{"x-revision": "B"}) == set()


def test_pods_come_and_go():
    pool = Pool(("A", "prefill", 1), ("A", "decode", 1))
    pool.add("B", "prefill", 0)
    assert pool.shares == {"A": 2}
    pool.add("B", "decode", 0)
    assert pool.shares == {"A": 2, "B": 2}
    pool.rig.apply(EndpointRemoved(EndpointId("default/A-decode-0")))
    assert pool.shares == {"B": 2}


def test_only_pods_in_scope_count_and_ranks_are_one_pod():
    pool = Pool(("A", "prefill", 1), ("A", "decode", 1))
    pool.add("A", "decode", 5, set="other")
    for port in (8001, 8002):
        labels = {"set": "s", REVISION: "A", ROLE: "decode"}
        rank = endpoint(f"rank-{port}", "10.9.9.9", port, labels=labels, pod="many")
        pool.rig.apply(EndpointUpserted(rank))
    assert pool.shares == {"A": 3}


PART, WHOLE = "x-llm-d-revision-decision-id", "x-request-id"


def test_all_parts_of_a_request_draw_one_revision_in_every_replica():
    first, second = (Pool(*AB, settings=configured(), draw=draw) for draw in (0.0, 0.999))
    ids = [f"request-{number}" for number in range(600)]
    drawn = [first.left(**{PART: each, WHOLE: "image-1"}) for each in ids]
    assert drawn == [second.left(**{PART: each, WHOLE: "image-2"}) for each in ids]
    assert drawn == [second.left(**{WHOLE: each}) for each in ids]
    of_a = sum(each == roles_of("A") for each in drawn)
    assert of_a + sum(each == roles_of("B") for each in drawn) == len(ids)
    # 11 of 13 go to A; the standard deviation of their share is 0.0147
    assert of_a / len(ids) == pytest.approx(11 / 13, abs=0.045)
    assert first.left(**{PART: ids[drawn.index(roles_of("B"))], "x-revision": "A"}) == roles_of("A")


def test_requests_draw_by_themselves_if_parts_are_not_to_be_coordinated():
    settings = configured("sum, disableCoordination: true")
    for draw, revision in ((0.0, "A"), (0.999, "B")):
        pool = Pool(*AB, settings=settings, draw=draw)
        assert {tuple(sorted(pool.left(**{PART: str(each)}))) for each in range(20)} == {
            tuple(sorted(roles_of(revision)))
        }


def test_a_strict_header_is_followed_without_a_draw():
    pool = Pool(*AB, draw=0.0)
    assert pool.left(**{"x-revision": "B"}) == roles_of("B")
    assert pool.left(**{"x-revision": ""}) == roles_of("A")
    assert pool.left(**{"x-revision": "C"}) == set()


def test_a_preferred_header_drops_nobody():
    assert Pool(*AB).left(**{"x-slice": "8"}) == roles_of("A")


def test_without_gating_only_strict_headers_count():
    pool = Pool(("A", "decode", 1), ("B", "prefill", 1), settings=configured("disabled"))
    assert pool.left() == {"A-decode", "B-prefill"}
    assert pool.left(**{"x-revision": "B"}) == {"B-prefill"}
    assert pool.screener.dump_state() == {"weights": {}, "endpoints": 2}


def test_nobody_left_is_503():
    pool = Pool(("A", "decode", 2))
    with pytest.raises(NoEndpoints) as raised:
        routed(pool.scheduler, request(), pool.rig.now)
    assert (raised.value.status, raised.value.reason) == (503, "screened-out")


def test_shares_are_of_all_revisions_and_unmatched_headers_are_counted():
    pool = Pool(*AB, ("C", "decode", 9))
    weights = pool.shares
    total = sum(weights.values())
    shares = pool.screener.shares()
    assert shares == {"A": weights["A"] / total, "B": weights["B"] / total, "C": 0.0}
    assert sum(shares.values()) == 1.0
    assert pool.left(**{"x-revision": "B"})
    assert pool.left(**{"x-revision": "Z"}) == pool.left(**{"x-revision": "C"}) == set()
    assert pool.screener.unmatched == {"revision": 2}
    assert Pool().screener.shares() == {}


def test_responses_say_which_revision_served():
    pool = Pool(*AB)
    decision = routed(pool.scheduler, request(), pool.rig.now)
    told = pool.screener.response_headers(request(), decision, None)
    assert dict(told) == {"x-revision": "A", "x-slice": "7"}
    other = Target(pool.rig.pod("B-decode-0").endpoint.target)
    assert dict(pool.screener.response_headers(request(), decision, other))["x-revision"] == "B"
    pool.rig.apply(EndpointUpserted(endpoint("B-decode-0", "10.9.9.9")))
    assert dict(pool.screener.response_headers(request(), decision, other))["x-revision"] == "A"
    pool.rig.apply(EndpointUpserted(endpoint("of no revision", "10.8.8.8")))
    assert pool.screener.response_headers(request(), decision, Target("10.8.8.8:8000")) == ()


ONE = "{name: n, headerName: h, labelKey: l, mode: strict}"
OTHER = "{name: m, headerName: H, labelKey: l, mode: prefer}"


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("", "missing required field `scope`"),
        (SCOPE, "missing required field `revisionGating`"),
        (f"{SCOPE}, revisionGating: {{mode: sum}}", "`requiredRoles` is required"),
        (
            f"{SCOPE}, revisionGating: {{mode: sum, requiredRoles: []}}",
            "`requiredRoles` is required",
        ),
        (
            f"{SCOPE}, revisionGating: {{mode: sum, requiredRoles: [a, a]}}",
            "`requiredRoles` must list roles, each once",
        ),
        (
            f"{SCOPE}, revisionGating: {{mode: sum, requiredRoles: [a], {ROLES}}}",
            "give only one of `requiredRoles` and `requireRoles`",
        ),
        (
            f"{SCOPE}, revisionGating: {{mode: most}}",
            "`most` is not one of sum, max-role, disabled",
        ),
        (
            f"{SCOPE}, revisionGating: {{mode: sum, requireRoles: {{values: []}}}}",
            "`values` must list roles",
        ),
        (
            f"{SCOPE}, revisionGating: {{mode: sum, requireRoles: {{values: [a, a]}}}}",
            "`values` must list roles",
        ),
        (
            "scope: {labelSelector: ''}, revisionGating: {mode: disabled}",
            "text of at least 1 character is expected",
        ),
        (
            "scope: {labelSelector: 'a in b'}, revisionGating: {mode: disabled}",
            "`a in b` is not a requirement of a label selector",
        ),
        (
            f"{SCOPE}, revisionGating: {{mode: disabled}}, headerSelectors: [{ONE}, {ONE}]",
            "two `headerSelectors` have the same name",
        ),
        (
            f"{SCOPE}, revisionGating: {{mode: disabled}}, headerSelectors: [{ONE}, {OTHER}]",
            "two `headerSelectors` have the same header name",
        ),
        (
            f"{SCOPE}, revisionGating: {{mode: disabled}}, headerSelectors: [{{name: n}}]",
            "missing required field `headerName`",
        ),
    ],
)
def test_what_it_cannot_be(parameters, said):
    with pytest.raises(ConfigError) as raised:
        load(CONFIG.format(parameters))
    assert raised.value.place.startswith("plugins[0].parameters")
    assert said in raised.value.problem
