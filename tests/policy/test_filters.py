"""Filters: tables worked out by hand from llm-d-router's rules."""

import msgspec
import pytest

from epp.config.catalogue import PLUGINS
from epp.errors import EndpointsFull
from epp.model.candidate import Candidate
from epp.model.endpoint import Load
from epp.policy.attribute_sources import EndpointLoad, LatencyPrediction
from epp.policy.filters.caches import PrefixCacheAffinityFilter, SloHeadroomTierFilter
from tests.policy.started import Told, kept, started
from tests.strategies import candidate, endpoint, request


def filtered(kind, asked, named=None, drawn=(), **parameters):
    plugin = started(msgspec.convert(parameters, PLUGINS[kind]), drawn, **(named or {}))
    return kept(plugin.filter(request(), asked))


def labelled(name, labels):
    return Candidate(endpoint=endpoint(name, labels=labels), load=Load())


ROLES = (
    "decode",
    "prefill",
    "encode",
    "prefill-decode",
    "encode-prefill",
    "encode-prefill-decode",
    "both",
    "other",
    "",
)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "decode-filter",
            ["decode", "prefill-decode", "encode-prefill-decode", "both", "unlabelled"],
        ),
        (
            "prefill-filter",
            ["prefill", "prefill-decode", "encode-prefill", "encode-prefill-decode", "both"],
        ),
        ("encode-filter", ["encode", "encode-prefill", "encode-prefill-decode"]),
    ],
)
def test_roles(kind, expected):
    asked = [labelled(role, {"llm-d.ai/role": role}) for role in ROLES]
    assert filtered(kind, [*asked, labelled("unlabelled", {})]) == expected


PODS = [
    labelled("a", {"app": "vllm", "tier": "gold"}),
    labelled("b", {"app": "vllm"}),
    labelled("c", {"app": "sglang", "tier": ""}),
]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({}, ["a", "b", "c"]),
        ({"matchLabels": {"app": "vllm"}}, ["a", "b"]),
        ({"matchLabels": {"app": "vllm", "tier": "gold"}}, ["a"]),
        ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, ["a", "c"]),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, ["b"]),
        ({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["", "x"]}]}, ["c"]),
        (
            {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["gold"]}]},
            ["b", "c"],
        ),
        (
            {
                "matchLabels": {"app": "vllm"},
                "matchExpressions": [{"key": "tier", "operator": "Exists", "values": []}],
            },
            ["a"],
        ),
    ],
)
def test_label_selectors(selector, expected):
    assert filtered("label-selector-filter", PODS, **selector) == expected
    assert filtered("by-label-selector", PODS, **selector) == expected


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"validValues": ["gold", "silver"]}, ["a"]),
        ({"validValues": ["gold"], "allowsNoLabel": True}, ["a", "b"]),
        ({"allowsNoLabel": True}, ["b"]),
        ({"validValues": ["gold", ""]}, ["a", "b", "c"]),  # a missing label is an empty one
    ],
)
def test_by_label(parameters, expected):
    assert filtered("by-label", PODS, label="tier", **parameters) == expected


def at(name, host, zone):
    keys = ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
    return labelled(name, dict(zip(keys, (host, zone), strict=True)))


@pytest.mark.parametrize(
    ("least", "expected"),
    [
        ("", ["near"]),
        ("host", ["near"]),
        ("rack", ["near"]),
        ("zone", ["near", "same-zone"]),
        ("region", None),
    ],
)
def test_topology(least, expected):
    asked = [at("near", "h1", "z1"), at("same-zone", "h2", "z1"), at("far", "h3", "z2")]
    asked.append(labelled("nowhere", {}))
    plugin = started(msgspec.convert({"minAffinity": least}, PLUGINS["topology-affinity-filter"]))
    peer = request(peer=asked[0].endpoint)
    assert kept(plugin.filter(peer, asked)) == (expected or ["near", "same-zone"])
    assert plugin.filter(request(), asked) is asked
    assert plugin.filter(peer, asked[2:]) == asked[2:]  # none is near: all


def cached(name, tokens, in_flight=0):
    return candidate(name, prompt_tokens=100, cached_tokens=tokens, in_flight_tokens=in_flight)


@pytest.mark.parametrize(
    ("parameters", "asked", "expected"),
    [
        ({}, [cached("a", 80), cached("b", 79)], ["a"]),
        ({}, [cached("a", 79), cached("b", 0)], ["a", "b"]),
        ({}, [cached("a", 90), cached("b", 100)], ["a", "b"]),
        ({"affinityThreshold": 0}, [cached("a", 0), cached("b", 100)], ["a", "b"]),
        ({"affinityThreshold": 1}, [cached("a", 99), cached("b", 100)], ["b"]),
        # 15928 tokens in flight are a second: a is 18 s later than b, and that is allowed
        ({}, [cached("a", 90, 18 * 15_928), cached("b", 0)], ["a"]),
        ({}, [cached("a", 90, 19 * 15_928), cached("b", 0)], ["a", "b"]),
        ({}, [cached("a", 90, 19 * 15_928), cached("b", 0, 15_928)], ["a"]),
        ({"maxTTFTPenaltyMs": 0}, [cached("a", 90, 10**9), cached("b", 0)], ["a"]),
        # As llm-d's optimized-baseline has it: tokens in place of time, and over, not at, them
        (
            {"maxTTFTPenaltyMs": 0, "maxTokensInFlightPenalty": 286_720},
            [cached("a", 90, 286_730), cached("b", 0, 10)],
            ["a"],
        ),
        (
            {"maxTTFTPenaltyMs": 0, "maxTokensInFlightPenalty": 286_720},
            [cached("a", 90, 286_731), cached("b", 0, 10)],
            ["a", "b"],
        ),
        ({"maxTokensInFlightPenalty": 100}, [cached("a", 90, 101), cached("b", 0)], ["a", "b"]),
        (
            {"maxTTFTPenaltyMs": 500, "peakPrefillThroughput": 1000},
            [cached("a", 90, 400), cached("b", 90, 900), cached("c", 0, 0)],
            ["a", "b"],
        ),
        (
            {"maxTTFTPenaltyMs": 500, "peakPrefillThroughput": 1000},
            [cached("a", 90, 501), cached("b", 90, 900), cached("c", 0, 0)],
            ["a", "b", "c"],
        ),
    ],
)
def test_sticky_until_saturated(parameters, asked, expected):
    assert filtered("prefix-cache-affinity-filter", asked, **parameters) == expected


@pytest.mark.parametrize(
    ("parameters", "asked", "drawn", "outcome"),
    [
        ({}, [cached("a", 90), cached("b", 0)], (), "sticky"),
        ({}, [cached("a", 90), cached("b", 80)], (), "sticky"),
        ({}, [cached("a", 79), cached("b", 0)], (), "no_match"),
        ({}, [cached("a", 90, 19 * 15_928), cached("b", 0)], (), "load_override"),
        ({"affinityThreshold": 0}, [cached("a", 90), cached("b", 0)], (), "not_applicable"),
        ({"explorationProbability": 0.5}, [cached("a", 90), cached("b", 0)], [0.4], "exploration"),
    ],
)
def test_how_the_affinity_filter_ended(parameters, asked, drawn, outcome):
    plugin = started(msgspec.convert(parameters, PLUGINS["prefix-cache-affinity-filter"]), drawn)
    plugin.filter(request(), asked)
    assert plugin.outcomes == {outcome: 1}


def test_sticky_until_predicted_to_be_late():
    asked = [cached("a", 90), cached("b", 0), cached("c", 0)]
    parameters = {"ttftSource": "latencyPredictor", "latencyPredictionInfoProducerName": "told"}

    def keeping(*times):
        predictions = [None if each is None else prediction(each) for each in times]
        told = Told(dict(zip("abc", predictions, strict=True)))
        return filtered("prefix-cache-affinity-filter", asked, {"told": told}, **parameters)

    assert keeping(18_100, 100, 200) == ["a"]
    assert keeping(18_101, 100, 200) == ["a", "b", "c"]
    assert keeping(None, 100, 200) == ["a", "b", "c"]  # the one without a prediction is never
    assert keeping(10**6, None, None) == ["a"]
    assert keeping(None, None, None) == ["a"]


def prediction(ttft, *headrooms):
    return LatencyPrediction(ttft, 0, *(headrooms or (0, 0)))


def test_exploration():
    asked = [cached("a", 90), cached("b", 0)]
    kind, parameters = "prefix-cache-affinity-filter", {"explorationProbability": 0.25}
    assert filtered(kind, asked, drawn=[0.24], **parameters) == ["a", "b"]
    assert filtered(kind, asked, drawn=[0.25], **parameters) == ["a"]


@pytest.mark.parametrize(
    ("headrooms", "drawn", "expected"),
    [
        ([(1, 1), (0, 0), (-1, 5), (5, -1), None], 0.5, ["a", "b"]),
        ([(1, 1), (0, 0), (-1, 5), (5, -1), None], 0.0, ["c", "d", "e"]),
        ([(1, 1), (0, 0), (-1, 5), (5, -1), None], 0.011, ["a", "b"]),
        ([(-1, -1), None, None, None, None], 0.5, ["a", "b", "c", "d", "e"]),
        ([(1, 1), None, None, None, None], 0.5, ["a"]),
        ([(1, 1)] * 5, 0.0, ["a", "b", "c", "d", "e"]),
        ([None] * 5, 0.0, ["a", "b", "c", "d", "e"]),
    ],
)
def test_headrooms(headrooms, drawn, expected):
    told = Told(
        {
            name: None if pair is None else prediction(0, *pair)
            for name, pair in zip("abcde", headrooms, strict=True)
        }
    )
    asked = [candidate(name) for name in "abcde"]
    name = {"latencyPredictionInfoProducerName": "told"}
    found = filtered("slo-headroom-tier-filter", asked, {"told": told}, [drawn], **name)
    assert found == expected


LOADS = [
    candidate("a", Load(waiting=0, running=8, kv_usage=0.5), requests=1),
    candidate("b", Load(waiting=3, running=2, kv_usage=0.9), requests=5),
]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([("waiting-queue", 2)], ["a"]),
        ([("waiting-queue", 3)], ["a", "b"]),
        ([("running-requests", 2)], ["b"]),
        ([("kv-cache-utilization", 0.9)], ["a", "b"]),
        ([("active-requests", 4)], ["a"]),
        ([("waiting-queue", 2), ("running-requests", 7)], []),
    ],
)
def test_utilization(conditions, expected):
    listed = [{"metric": metric, "maxValue": most} for metric, most in conditions]
    if expected:
        assert filtered("utilization-filter", LOADS, conditions=listed) == expected
    else:
        with pytest.raises(EndpointsFull, match="above a limit") as raised:
            filtered("utilization-filter", LOADS, conditions=listed)
        assert (raised.value.status, raised.value.reason) == (429, "endpoints-full")
    fallen_back = filtered("utilization-filter", LOADS, conditions=listed, fallbackOnEmpty=True)
    assert fallen_back == (expected or ["a", "b"])


def test_utilization_by_a_named_producer():
    told = Told({"a": EndpointLoad(9, 0, 0), "b": EndpointLoad(0, 0, 0)})
    active = {"metric": "active-requests", "maxValue": 4}
    parameters = {"conditions": [active], "inFlightLoadProducerName": "told"}
    assert filtered("utilization-filter", LOADS, {"told": told}, **parameters) == ["b"]


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("LessThan", ["a"]),
        ("LessThanOrEqual", ["a", "b"]),
        ("GreaterThan", ["c"]),
        ("GreaterThanOrEqual", ["b", "c"]),
        ("Equal", ["b"]),
        ("NotEqual", ["a", "c"]),
    ],
)
def test_attributes(operator, expected):
    key = "load/core-metrics-extractor"
    asked = [
        candidate(name, Load(attributes={key: value}))
        for name, value in (("a", 1.0), ("b", 2.0), ("c", 3.0))
    ]
    asked.append(candidate("missing"))
    rule = {"type": "threshold", "threshold": {"operator": operator, "value": 2}}
    parameters = {"attribute": "load", "algorithm": rule}
    kind = "endpoint-attribute-filter"
    assert filtered(kind, asked, **parameters) == [*expected, "missing"]
    assert filtered(kind, asked, **parameters, onMissing="") == [*expected, "missing"]
    assert filtered(kind, asked, **parameters, onMissing="Fail") == expected
    failing = {**parameters, "onMissing": "Fail"}
    assert filtered(kind, asked[3:], **failing) == []
    assert filtered(kind, asked[3:], **failing, fallbackOnEmpty=True) == ["missing"]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"type": "range", "range": {"min": 2, "max": 3}}, "bcd"),
        ({"type": "range", "range": {"min": 5, "max": 9}}, ""),
        ({"type": "topK", "topK": {"k": 1}}, "e"),
        ({"type": "topK", "topK": {"k": 3}}, "bde"),  # c is as high as b, and comes later
        ({"type": "topK", "topK": {"k": 2, "higherIsBetter": False}}, "ab"),
        ({"type": "topK", "topK": {"k": 9}}, "abcde"),
        # By the nearest rank: of five values the second is the 25th percentile.
        ({"type": "percentile", "percentile": {"percentile": 25}}, "bcde"),
        ({"type": "percentile", "percentile": {"percentile": 25, "higherIsBetter": False}}, "abc"),
        ({"type": "percentile", "percentile": {"percentile": 100}}, "e"),
        ({"type": "percentile", "percentile": {"percentile": 0}}, "abcde"),
    ],
)
def test_attributes_by_their_ranks(rule, expected):
    key = "load/core-metrics-extractor"
    numbers = zip("abcde", (1.0, 2.0, 2.0, 3.0, 4.0), strict=True)
    asked = [candidate(name, Load(attributes={key: value})) for name, value in numbers]
    asked.insert(2, candidate("missing"))
    kind, parameters = "endpoint-attribute-filter", {"attribute": "load", "algorithm": rule}
    failing = filtered(kind, asked, **parameters, onMissing="Fail")
    assert failing == list(expected)
    passing = filtered(kind, asked, **parameters)
    assert [each for each in passing if each != "missing"] == failing
    assert "missing" in passing
    assert filtered(kind, asked[2:3], **parameters) == ["missing"]


@pytest.mark.parametrize(
    ("kind", "parameters", "said"),
    [
        (
            "endpoint-attribute-filter",
            {"attribute": "a", "algorithm": {"type": "topK", "range": {"min": 1, "max": 2}}},
            "`topK` is required if `type` is `topK`",
        ),
        (
            "endpoint-attribute-filter",
            {"attribute": "a", "algorithm": {"type": "range", "range": {"min": 2, "max": 1}}},
            "`min` is 2.0, above `max`, 1.0",
        ),
        (
            "endpoint-attribute-filter",
            {"attribute": "a", "algorithm": {"type": "topK", "topK": {"k": 0}}},
            "`int` >= 1",
        ),
        ("prefix-cache-affinity-filter", {"affinityThreshold": 1.1}, "`affinityThreshold` is 1.1"),
        ("prefix-cache-affinity-filter", {"explorationProbability": -1}, "is -1, below 0"),
        ("prefix-cache-affinity-filter", {"maxTTFTPenaltyMs": -1}, "is -1, below 0"),
        ("prefix-cache-affinity-filter", {"maxTokensInFlightPenalty": -1}, "is -1, below 0"),
        ("prefix-cache-affinity-filter", {"peakPrefillThroughput": 0}, "above 0 if TTFTs"),
        ("prefix-cache-affinity-filter", {"ttftSource": "x"}, "Invalid enum value 'x'"),
        ("slo-headroom-tier-filter", {"epsilonExploreNeg": 2}, "`epsilonExploreNeg` is 2, above 1"),
        ("utilization-filter", {"conditions": []}, "`conditions` is empty"),
        (
            "utilization-filter",
            {"conditions": [{"metric": "kv-cache-utilization", "maxValue": 2}]},
            "more than 1",
        ),
        (
            "utilization-filter",
            {"conditions": [{"metric": "waiting-queue", "maxValue": -1}]},
            "below 0",
        ),
        ("by-label", {"label": "a"}, "one of `validValues` and `allowsNoLabel`"),
        ("by-label", {"label": "", "allowsNoLabel": True}, "`label` is empty"),
        ("label-selector-filter", {"matchLabels": {"a b": "c"}}, "`a b` is not a label key"),
        ("label-selector-filter", {"matchLabels": {"a": "c d"}}, "`c d` is not a label value"),
        (
            "label-selector-filter",
            {"matchExpressions": [{"key": "a", "operator": "In"}]},
            "`values` is empty",
        ),
        (
            "label-selector-filter",
            {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]},
            "takes no `values`",
        ),
        ("topology-affinity-filter", {"minAffinity": "city"}, "Invalid enum value 'city'"),
    ],
)
def test_what_is_out_of_range_is_an_error(kind, parameters, said):
    with pytest.raises(msgspec.ValidationError, match=said):
        msgspec.convert(parameters, PLUGINS[kind])


def test_defaults_are_the_published_ones():
    affinity = PrefixCacheAffinityFilter()
    assert (affinity.affinity_threshold, affinity.max_ttft_penalty_ms) == (0.8, 18_000)
    assert affinity.peak_prefill_throughput == 15_928
    assert SloHeadroomTierFilter().epsilon_explore_neg == 0.01
