"""Scorers by labels and attributes: tables worked out by hand from llm-d-router's rules."""

import msgspec
import pytest

from epp.config.catalogue import PLUGINS
from epp.errors import ConfigError
from epp.model.candidate import Candidate
from epp.model.decision import Decision
from epp.model.endpoint import Load
from epp.policy.attributes import find_attribute
from epp.policy.scorers.labels import (
    ContextLengthAware,
    HeaderLabelAffinityScorer,
    TopologyAffinityScorer,
)
from epp.protocol.metrics.attribute_reader import GPU_UTILIZATION
from tests.policy.started import Context, kept, started
from tests.strategies import candidate, endpoint, request


def labelled(name="pod-0", prompt_tokens=0, **labels):
    found = {key.replace("_", "-"): value for key, value in labels.items()}
    place = endpoint(name, labels=found)
    return Candidate(endpoint=place, load=Load(), prompt_tokens=prompt_tokens)


def test_header_and_label():
    scorer = HeaderLabelAffinityScorer(header_name="X-Slice", label_key="slice")
    asked = [labelled(slice="one"), labelled(slice="two"), labelled(), labelled(slice="")]
    assert scorer.score(request(headers={"x-slice": "two"}), asked) == [0, 1, 0, 0]
    assert scorer.score(request(headers={"x-slice": ""}), asked) == [0, 0, 0, 0]
    assert scorer.score(request(), asked) == [0, 0, 0, 0]


def test_a_response_says_the_label_of_the_endpoint_that_served():
    one, bare = labelled("one", slice="1"), labelled("bare")
    two = Candidate(endpoint=endpoint("two", "10.0.0.2", labels={"slice": "2"}), load=Load())
    chosen = Decision(endpoints=(one.endpoint, two.endpoint), candidates=(one, two, bare))
    asked = request(headers={"x-slice": "2"})
    scorer = HeaderLabelAffinityScorer(header_name="X-Slice", label_key="slice")
    assert scorer.response_headers(asked, chosen, None) == (("x-slice", "1"),)
    assert scorer.response_headers(asked, chosen, two.endpoint.target) == (("x-slice", "2"),)
    assert scorer.response_headers(asked, Decision(endpoints=(bare.endpoint,)), None) == ()
    silent = msgspec.structs.replace(scorer, stamp_response_header=False)
    assert silent.response_headers(asked, chosen, None) == ()


RANGES = [
    # inside: 0.7 for the width (halved by 10000 tokens) and 0.3 for the room, above 0.3
    ("0-10000", 0, 0.3 + 0.7 * (0.7 / 2 + 0.3)),
    ("0-10000", 5000, 0.3 + 0.7 * (0.7 / 2 + 0.3 * 0.5)),
    ("0-10000", 10_000, 0.3 + 0.7 * 0.7 / 2),
    (" 1000 - 3000 ", 2000, 0.3 + 0.7 * (0.7 / 1.2 + 0.3 * 0.5)),
    ("500-500", 500, 1),
    # outside: a third of 0.9 at no distance, half of that at 1000 tokens
    ("500-500", 1500, 0.3 / 2),
    ("4000-8000", 1000, 0.3 / 4),
    ("8000-4000", 5000, 0),
    ("4000", 4000, 0),
    ("a-b", 0, 0),
    ("a-5", 0, 0),
    ("0-" + "9" * 5000, 0, 0),
    ("", 0, 0),
    ("-1-5", 0, 0),
    (None, 7, 0.5),
]


@pytest.mark.parametrize(("span", "tokens", "score"), RANGES)
def test_context_lengths(span, tokens, score):
    labels = {} if span is None else {"range": span}
    (found,) = ContextLengthAware(label="range").score(
        request(), [labelled(prompt_tokens=tokens, **labels)]
    )
    assert found == pytest.approx(score)


def test_context_lengths_as_a_filter():
    asked = [
        labelled("short", 500, range="0-499"),
        labelled("fits", 500, range="500-900"),
        labelled("none", 500),
        labelled("bad", 500, range="many"),
    ]
    assert ContextLengthAware(label="range").filter(request(), asked) is asked
    filtering = ContextLengthAware(label="range", enable_filtering=True)
    assert kept(filtering.filter(request(), asked)) == ["fits", "none"]


def at(host="", rack="", zone="", region="", name="pod-0"):
    names = ("kubernetes.io/hostname", *(f"topology.kubernetes.io/{each}" for each in WIDER))
    labels = dict(zip(names, (host, rack, zone, region), strict=True))
    return endpoint(name, labels={key: value for key, value in labels.items() if value})


WIDER = ("rack", "zone", "region")
PEER = at("h1", "r1", "z1", "g1")


@pytest.mark.parametrize(
    ("place", "score"),
    [
        (PEER, 1),
        (at("h2", "r1", "z1", "g1"), 0.2),
        (at("h2", "r2", "z1", "g1"), 0.05),
        (at("h2", "r2", "z2", "g1"), 0.02),
        (at("h2", "r2", "z2", "g2"), 0),
        (at(zone="z1"), 0.05),
        (at(), 0),
    ],
)
def test_topology(place, score):
    scorer, asked = started(TopologyAffinityScorer()), [Candidate(endpoint=place, load=Load())]
    assert scorer.score(request(peer=PEER), asked) == [score]
    assert scorer.score(request(peer=at()), asked) == [0]
    assert scorer.score(request(), asked) == [0]


@pytest.mark.parametrize(
    ("parameters", "scores"),
    [
        # a weight by the highest one, whatever their scale
        ({"weights": {"g1": 10, "g2": 5}}, [1, 0.5, 0, 0]),
        ({"weights": {"g1": 0.1, "g2": 0.4, "g3": 0}, "field": "region"}, [0.25, 1, 0, 0]),
        ({"weights": {"g1": 2}, "field": ""}, [1, 0, 0, 0]),
        ({"weights": {"z2": 3, "g1": 9}, "field": "zone"}, [0, 1 / 3, 0, 0]),
        ({"weights": {"r1": 1}, "field": "rack"}, [1, 0, 0, 0]),
        ({"weights": {"h2": 1}, "field": "host"}, [0, 1, 0, 0]),
    ],
)
def test_weights_of_places(parameters, scores):
    scorer = scorer_of("multicluster-topology-scorer", **parameters)
    places = [PEER, at("h2", "r2", "z2", "g2"), at(region="elsewhere"), at()]
    asked = [Candidate(endpoint=each, load=Load()) for each in places]
    assert scorer.score(request(), asked) == pytest.approx(scores)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"weights": {}}, "one of `weights` must be above 0"),
        ({"weights": {"g1": 0}}, "one of `weights` must be above 0"),
        ({"weights": {"g1": 1, "g2": -1}}, "each of `weights` must be 0 or above"),
        ({"weights": {"g1": 1}, "field": "planet"}, "planet"),
        ({}, "weights"),
    ],
)
def test_weights_that_prefer_no_place_are_an_error(parameters, said):
    with pytest.raises(msgspec.ValidationError, match=said):
        msgspec.convert(parameters, PLUGINS["multicluster-topology-scorer"])


def attributed(*values, key="load/core-metrics-extractor"):
    return [
        candidate(load=Load(attributes={} if value is None else {key: value})) for value in values
    ]


def scorer_of(kind, named=None, **parameters):
    return started(msgspec.convert(parameters, PLUGINS[kind]), **(named or {}))


@pytest.mark.parametrize(
    ("algorithm", "values", "expected"),
    [
        ({"type": "linear_lower_is_better"}, [2, 4, None, 10], [1, 0.75, 0, 0]),
        ({"type": "linear_higher_is_better"}, [2, 4, None, 10], [0, 0.25, 0, 1]),
        ({"type": "linear_higher_is_better"}, [3, 3, None], [1, 1, 0]),
        ({"type": "linear_lower_is_better"}, [float("nan"), 1], [0, 1]),
        (
            {
                "type": "linear_lower_is_better",
                "normalization": {"fixedRange": {"min": 10, "max": 20}},
            },
            [5, 10, 14, 20, 99, None],
            [1, 1, 0.6, 0, 0, 0],
        ),
        (
            {
                "type": "linear_higher_is_better",
                "normalization": {"fixedRange": {"min": 10, "max": 20}},
            },
            [5, 14, 99, None],
            [0, 0.4, 1, 0],
        ),
        (
            {"type": "linear_higher_is_better", "normalization": {"adaptiveRange": {}}},
            [1, 2, 5],
            [0, 0.25, 1],
        ),
    ],
)
def test_attributes(algorithm, values, expected):
    scorer = scorer_of("endpoint-attribute-scorer", attributeKey="load", algorithm=algorithm)
    assert scorer.score(request(), attributed(*values)) == pytest.approx(expected)


def test_whose_attribute_it_is():
    assert find_attribute(Context(), "a", None).key == "a/core-metrics-extractor"
    assert find_attribute(Context(), "a", "").key == "a"
    assert find_attribute(Context(), "a/b", "dcgm-extractor").key == "a/b/dcgm-extractor"
    with pytest.raises(ConfigError, match="name its producer"):
        find_attribute(Context(), "a/b", None)
    for unnamed in ("/dcgm-extractor", "a/dcgm-extractor/b"):
        with pytest.raises(ConfigError, match="name its producer"):
            find_attribute(Context(), unnamed, None)
    both = find_attribute(Context(), "GPUUtilization/dcgm-extractor", None)
    assert both.key == GPU_UTILIZATION
    assert both == find_attribute(Context(), "GPUUtilization", "dcgm-extractor")
    labels = msgspec.convert(
        {"label": "gpus", "attributeKey": "gpus", "valueType": "number"}, PLUGINS["label-producer"]
    )
    found = find_attribute(Context(mine=labels), "gpus", "mine")
    assert found.values([labelled(gpus="8"), labelled(gpus="?")]) == [8, 0]


def test_clusters():
    queue = scorer_of("multicluster-queue-scorer")
    asked = attributed(1, 3, None, 5, key="llm-d.ai/multicluster-queue-size")
    assert queue.score(request(), asked) == [1, 0.5, 0, 0]
    usage = scorer_of("multicluster-kv-cache-utilization-scorer")
    asked = attributed(0.25, None, 1.5, key="llm-d.ai/multicluster-kv-cache-utilization")
    assert usage.score(request(), asked) == [0.75, 0, 0]


def test_weights_of_values():
    labels = msgspec.convert(
        {"labels": [{"label": "gpu", "attributeKey": "accelerator"}]}, PLUGINS["label-producer"]
    )
    parameters = {"attributeKey": "accelerator", "weights": {"h200": 4, "h100": 3, "l4": 1}}
    asked = [labelled(gpu="h200"), labelled(gpu="h100"), labelled(gpu="tpu"), labelled()]
    named = {"label_producer": labels}
    scorer = scorer_of("endpoint-attribute-weight-scorer", named, **parameters)
    assert scorer.score(request(), asked) == [1, 0.75, 0.25, 0.25]
    scorer = scorer_of("endpoint-attribute-weight-scorer", **parameters)
    assert scorer.score(request(), asked) == [0.25] * 4
