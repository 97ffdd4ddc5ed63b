import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.label_selector import LabelSelector
from epp.model.request import InferenceRequest, RequestId
from epp.protocol.kube.object_warnings import ObjectWarnings
from epp.protocol.kube.objects import PoolRef
from epp.protocol.kube.resources import OBJECTIVE_VERSIONS
from epp.protocol.kube.routing_state import RoutingState
from epp.protocol.routing_table import NO_ROUTING, RoutingTable, WeightedTargets
from tests.protocol.kube.objects import objective, objective_v1, read, rewrite

POOL = PoolRef("pool", "inference.networking.k8s.io")
V1, NEW, OLD = OBJECTIVE_VERSIONS


@pytest.fixture
def warnings():
    return ObjectWarnings()


@pytest.fixture
def state(warnings):
    return RoutingState(POOL, warnings)


def asked(model="base", objective="", header=""):
    return InferenceRequest(
        id=RequestId("1"), model=model, target_model=header or model, objective=objective
    )


def never(_):
    raise AssertionError("nothing is to be drawn")


def constantly(number):
    return lambda _: number


def target(routing, model="base", **more):
    return routing.resolve(asked(model, **more), never).target_model


def rewritten(state, *documents, group=NEW):
    state.rewrites.upsert(group, [read(each) for each in documents])
    return state.routing()


def test_without_objects_requests_stay_as_they_are():
    request = asked(objective="any", header="other")
    assert NO_ROUTING.resolve(request, never) is request


@pytest.mark.parametrize(("said", "priority"), [(7, 7), (-3, -3), (0, 0), (None, 0)])
def test_an_objective_gives_its_priority(state, said, priority):
    state.objectives.upsert(NEW, [read(objective("urgent", said))])
    routing = state.routing()
    assert routing.resolve(asked(objective="urgent"), never).priority == priority
    assert routing.resolve(asked(objective="unknown"), never).priority == 0
    assert routing.resolve(asked(), never).priority == 0


def test_both_groups_count_and_the_newer_wins_a_name(state):
    state.objectives.upsert(OLD, [read(objective("a", 1)), read(objective("b", 2))])
    state.objectives.upsert(NEW, [read(objective("a", 10))])
    assert state.routing().priorities == {"a": 10, "b": 2}
    state.objectives.remove(NEW, ["a"])
    assert state.routing().priorities == {"a": 1, "b": 2}
    state.objectives.retain(OLD, ["b"])
    assert state.routing().priorities == {"b": 2}


def test_the_view_of_v1_wins_over_that_of_v1alpha2_where_it_names_the_pool(state):
    state.objectives.upsert(NEW, [read(objective("a", 1)), read(objective("b", 2))])
    # What the API shows of an object of v1alpha2 in v1 has no poolRef.
    state.objectives.upsert(V1, [read(objective_v1("a", 1))])
    assert state.routing().priorities == {"a": 1, "b": 2}
    state.objectives.upsert(V1, [read(objective_v1("b", 9, poolRefs=[{"name": "pool"}]))])
    assert state.routing().priorities == {"a": 1, "b": 9}


@pytest.mark.parametrize(
    ("refs", "applies"),
    [
        (["pool"], True),
        (["other", "pool"], True),
        (["other"], False),
    ],
)
def test_one_of_several_references_is_enough(state, warnings, refs, applies):
    state.objectives.upsert(
        V1, [read(objective_v1("a", 1, poolRefs=[{"name": name} for name in refs]))]
    )
    assert state.routing().priorities == ({"a": 1} if applies else {})
    warned = [each.fields["pool_ref"] for each in warnings.drain()]
    assert warned == ([] if applies else ["InferencePool.inference.networking.k8s.io/other"])


def expression(key, operator, *values):
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


SELECTORS = [
    ({"matchLabels": {"tier": "gold"}}, True),
    ({"matchLabels": {"tier": "gold", "zone": "a"}}, False),
    ({"matchLabels": {}}, False),
    (expression("tier", "In", "silver", "gold"), True),
    (expression("zone", "In", "a"), False),
    (expression("tier", "NotIn", "gold"), False),
    (expression("zone", "NotIn", "a"), True),
    (expression("tier", "Exists"), True),
    (expression("tier", "DoesNotExist"), False),
    (expression("zone", "DoesNotExist"), True),
    (expression("tier", "Gt", "1"), False),
    ({"matchLabels": {"tier": "gold"}, **expression("zone", "Exists")}, False),
]


@pytest.mark.parametrize(("selector", "applies"), SELECTORS)
def test_a_pool_is_selected_by_its_labels(state, warnings, selector, applies):
    state.objectives.upsert(V1, [read(objective_v1("a", 1, poolSelector=selector))])
    assert state.routing().priorities == {}
    state.pool_labels = {"tier": "gold"}
    assert state.routing().priorities == ({"a": 1} if applies else {})
    state.pool_labels = None
    assert state.routing().priorities == {}
    assert warnings.drain() == []


def test_an_empty_selector_selects_nothing():
    assert not LabelSelector().selects({"a": "b"})


@pytest.mark.parametrize(
    "ref", [{"name": "other"}, {"group": "inference.networking.x-k8s.io"}, {"kind": "Service"}]
)
def test_objects_of_other_pools_are_ignored_and_warned_of_once(state, warnings, ref):
    for _ in range(2):
        state.objectives.upsert(NEW, [read(objective("a", 1, ref=ref))])
        state.rewrites.upsert(OLD, [read(rewrite("r", (None, {"x": 1}), ref=ref))])
    assert state.routing() == RoutingTable()
    first, second = warnings.drain()
    assert (first.event, first.fields["object"]) == (
        "object.foreign_pool",
        "inferenceobjective.llm-d.ai/a",
    )
    assert second.fields["object"] == "inferencemodelrewrite.inference.networking.x-k8s.io/r"
    state.objectives.upsert(NEW, [read(objective("a", 1))])
    assert state.routing().priorities == {"a": 1}
    state.objectives.upsert(NEW, [read(objective("a", 1, ref=ref))])
    assert state.routing().priorities == {}
    assert len(warnings.drain()) == 1


def test_objects_that_are_being_deleted_count_as_deleted(state, warnings):
    documents = objective("a", 1), rewrite("r", (None, {"x": 1}))
    for _ in range(2):
        for objects, each in zip((state.objectives, state.rewrites), documents, strict=True):
            objects.upsert(NEW, [read(each)])
            # A finalizer may keep an object for long.
            each["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    assert state.routing() == RoutingTable()
    assert warnings.drain() == []


def test_an_exact_match_wins_over_one_of_all_models_whatever_their_age(state):
    routing = rewritten(
        state,
        rewrite("old", (None, {"all": 1}), created="2020-01-01T00:00:00Z"),
        rewrite("new", (["base", "b"], {"exact": 1}), created="2026-01-01T00:00:00Z"),
    )
    assert target(routing) == target(routing, "b") == "exact"
    assert target(routing, "c") == "all"
    assert target(routing, "") == "all"


def test_the_older_object_wins_then_the_name_then_the_order_of_rules(state):
    routing = rewritten(
        state,
        rewrite("b", (["m"], {"by-name-b": 1}), (None, {"generic-b": 1})),
        rewrite("a", (["m"], {"first": 1}), (["m"], {"second": 1}), (["n"], {"n-a": 1})),
        rewrite("c", (["n"], {"oldest": 1}), created="2025-12-31T23:59:59Z"),
    )
    assert [target(routing, model) for model in "mnx"] == ["first", "oldest", "generic-b"]


def test_a_rewrite_wins_over_the_clients_header(state):
    routing = rewritten(state, rewrite("a", (["m"], {"mine": 1})))
    assert target(routing, "m", header="theirs") == "mine"
    assert target(routing, "n", header="theirs") == "theirs"


def test_both_groups_of_rewrites_count(state):
    rewritten(state, rewrite("a", (["m"], {"new": 1}), created="2026-01-02T00:00:00Z"))
    routing = rewritten(
        state, rewrite("b", (["m"], {"old": 1}), (["n"], {"n": 1}), group=OLD), group=OLD
    )
    assert [target(routing, model) for model in "mn"] == ["old", "n"]
    state.rewrites.retain(OLD, [])
    assert target(state.routing(), "m") == "new"


def test_of_two_rewrites_of_one_name_that_of_the_new_group_counts_though_it_is_younger(state):
    old = rewrite("a", (["m"], {"old": 1}), (["n"], {"old-n": 1}), group=OLD)
    new = rewrite("a", (["m"], {"new": 1}), created="2026-01-02T00:00:00Z")
    rewritten(state, old, group=OLD)
    routing = rewritten(state, new)
    assert [target(routing, model) for model in "mn"] == ["new", "n"]
    state.rewrites.remove(NEW, ["a"])
    assert [target(state.routing(), model) for model in "mn"] == ["old", "old-n"]


WEIGHTED = [
    ({"a": 90, "b": 10}, {"a": 0.9, "b": 0.1}),
    ({"a": None, "b": None}, {"a": 0.5, "b": 0.5}),
    ({"a": 3, "b": None, "c": 1}, {"a": 0.75, "c": 0.25}),
    ({"a": None}, {"a": 1}),
]


@pytest.mark.parametrize(("targets", "shares"), WEIGHTED)
def test_targets_are_drawn_by_weight(state, targets, shares):
    routing = rewritten(state, rewrite("r", (["m"], targets)))
    draw = random.Random(1).randrange  # noqa: S311 (chance, not secrets)
    got = [routing.resolve(asked("m"), draw).target_model for _ in range(4000)]
    assert {model: got.count(model) / len(got) for model in set(got)} == pytest.approx(
        shares, abs=0.03
    )


@given(st.lists(st.tuples(st.text(min_size=1), st.integers(1, 10**6)), min_size=1, max_size=6))
def test_every_number_below_the_sum_is_one_targets(weighted):
    targets = WeightedTargets.of(weighted)
    edge = 0
    for model, weight in weighted:
        assert targets.draw(constantly(edge)) == model
        assert targets.draw(constantly(edge + weight - 1)) == model
        edge += weight
    assert targets.bounds[-1] == edge
