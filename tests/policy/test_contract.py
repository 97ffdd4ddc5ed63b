"""What every registered filter, scorer and picker promises, with the least parameters."""

from contextlib import suppress
from itertools import combinations
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epp.config.catalogue import PLUGINS
from epp.config.plugins import Plugins
from epp.config.schema import PluginSpec
from epp.errors import ConfigError, EndpointsFull
from epp.model.endpoint import Endpoint, Load
from epp.policy.plugins import Filter, PickContext, Picker, SaturationDetector, Scorer
from epp.values import replaced
from tests.strategies import ADAPTERS, SteadyLoad, candidates, endpoint, request

LEAST = {
    "by-label": {"label": "tier", "validValues": ["gold"]},
    "context-length-aware": {"enableFiltering": True},
    "endpoint-attribute-filter": {
        "attribute": "a",
        "algorithm": {"type": "threshold", "threshold": {"operator": "LessThan", "value": 1}},
    },
    "endpoint-attribute-scorer": {
        "attributeKey": "a",
        "algorithm": {"type": "linear_lower_is_better"},
    },
    "endpoint-attribute-weight-scorer": {"attributeKey": "a", "weights": {"x": 1, "y": 2}},
    "header-label-affinity-scorer": {"headerName": "x-tier", "labelKey": "tier"},
    "multicluster-topology-scorer": {"weights": {"x": 1, "y": 2}},
    "production-stack-session-scorer": {"sessionKey": "x-tier"},
    "utilization-filter": {"conditions": [{"metric": "waiting-queue", "maxValue": 3}]},
}
"""The parameters of types that require some, or do nothing by default."""
DETECTORS: list[dict[str, Any]] = [
    {"type": "max-saturation-detector", "parameters": {"detectors": ["one", "two"]}},
    {"type": "utilization-detector", "name": "one"},
    {"type": "concurrency-detector", "name": "two"},
]
BY_ORDER = {
    "no-hit-lru-scorer",
    "ray-prefix-affinity-scorer",
    "sglang-cache-aware-scorer",
    "smg-prefix-hash-scorer",
    "vllm-cache-aware-scorer",
    "vllm-consistent-hash-scorer",
}
"""Types whose rule ranks candidates by their order, or takes the first of equals."""


def start(kind):
    specs: list[dict[str, Any]] = [{"type": kind, "parameters": LEAST.get(kind)}]
    if kind == "max-saturation-detector":
        specs = DETECTORS
    plugins = Plugins([PluginSpec(**each) for each in specs], lambda most: most // 3)
    return plugins[kind]


def started_types():
    for kind in sorted(PLUGINS):
        try:
            yield kind, start(kind)
        except ConfigError:  # it requires parameters: no filter, scorer or picker, see below
            assert kind not in LISTED


PLACES = tuple(
    f"epp.policy.{name}" for name in ("scorers", "filters", "peers", "pickers", "sessions")
)
LISTED = {kind for kind, found in PLUGINS.items() if found.__module__.startswith(PLACES)}
STARTED = dict(started_types())


def types_of(*kinds):
    return [kind for kind, plugin in STARTED.items() if isinstance(plugin, kinds)]


def some_of(keys, values):
    """Draw mappings from any of the keys."""
    chosen = [each for size in range(len(keys) + 1) for each in combinations(keys, size)]
    return st.one_of([st.fixed_dictionaries(dict.fromkeys(each, values)) for each in chosen])


labels = some_of(
    ["tier", "llm-d.ai/role", "llm-d.ai/context-length-range"],
    st.sampled_from(["gold", "prefill", "decode", "0-100", "50-9000", "x"]),
)
attributes = some_of(
    [
        "a/core-metrics-extractor",
        "llm-d.ai/multicluster-queue-size",
        "llm-d.ai/multicluster-kv-cache-utilization",
    ],
    st.floats(allow_nan=True, allow_infinity=True),
)
extras = st.tuples(
    attributes,
    labels,
    st.integers(0, 2),
    st.sampled_from([None, SteadyLoad(2.0, 3.0, 0.4)]),
    st.integers(0, 10**7),
)


@st.composite
def asked(draw):
    """Draw candidates, some with labels, attributes and loads of the moment, some unreported."""
    found = draw(candidates())
    for position, each in enumerate(found):
        noted, labelled, reported, current, tokens = draw(extras)
        place, load = each.endpoint, msgspec.structs.replace(each.load, attributes=noted)
        loads = [Load(), load, msgspec.structs.replace(load, at=1.0)]
        found[position] = replaced(
            each,
            endpoint=Endpoint(
                place.namespace, place.name, place.address, place.port, labels=labelled
            ),
            load=loads[reported],
            current=current,
            in_flight_tokens=tokens,
        )
    return found


requests = st.builds(
    request,
    st.just("r1"),
    target_model=st.sampled_from(ADAPTERS),
    headers=st.sampled_from([{}, {"x-tier": "gold"}, {"x-session-token": "ZGVmYXVsdC9wb2QtMQ=="}]),
    peer=st.sampled_from([None, endpoint("peer", labels={"kubernetes.io/hostname": "h"})]),
)
often = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)


def test_every_listed_type_is_tested():
    acting = types_of(Filter, Scorer, Picker, SaturationDetector)
    assert set(acting) >= LISTED


# Drawing takes more than all that is asked of a type: all types are asked about the same examples.


@often
@given(found=asked(), wanted=requests, data=st.data())
def test_every_scorer(found, wanted, data):
    order = data.draw(st.permutations(range(len(found))))
    for kind in types_of(Scorer):
        check_scorer(kind, found, wanted, order)


def check_scorer(kind, found, wanted, order):
    """One value in 0..1 a candidate, whatever their order; none changes what it is given."""
    scorer, before = start(kind), list(found)
    scores = list(scorer.score(wanted, found))
    assert len(scores) == len(found)
    assert all(0 <= score <= 1 for score in scores)
    assert found == before
    assert list(scorer.score(wanted, found)) == scores
    assert list(scorer.score(wanted, [])) == []
    (alone,) = scorer.score(wanted, found[:1])
    assert 0 <= alone <= 1
    if kind not in BY_ORDER:
        shuffled = scorer.score(wanted, [found[position] for position in order])
        assert list(shuffled) == pytest.approx([scores[position] for position in order])


@often
@given(found=asked(), wanted=requests, data=st.data())
def test_every_filter(found, wanted, data):
    order = data.draw(st.permutations(range(len(found))))
    for kind in types_of(Filter):
        check_filter(kind, found, wanted, order)


def check_filter(kind, found, wanted, order):
    """Some of the candidates in their order, the same ones whatever it is."""
    plugin, before = start(kind), list(found)
    try:
        kept = list(plugin.filter(wanted, found))
    except EndpointsFull:
        return
    assert kept == [each for each in found if each in kept]
    assert found == before
    assert list(plugin.filter(wanted, [])) == []
    with suppress(EndpointsFull):
        assert list(plugin.filter(wanted, found[:1])) in ([], found[:1])
    names = {each.endpoint.id for each in plugin.filter(wanted, [found[at] for at in order])}
    assert names == {each.endpoint.id for each in kept}


@often
@given(found=asked())
def test_every_detector(found):
    for kind in types_of(SaturationDetector):
        detector = start(kind)
        assert detector.saturation(found) >= 0
        assert detector.saturation([]) == 1


@often
@given(found=asked(), data=st.data())
def test_every_picker(found, data):
    """At least one position, each once, and each of a candidate."""
    totals = data.draw(st.lists(st.floats(-1, 100), min_size=len(found), max_size=len(found)))
    before = list(totals)
    context = PickContext(lambda most: data.draw(st.integers(0, most - 1)), 7)
    for kind in types_of(Picker):
        positions = list(start(kind).pick(found, totals, context))
        assert 1 <= len(positions) == len(set(positions))
        assert set(positions) <= set(range(len(found)))
        assert totals == before
