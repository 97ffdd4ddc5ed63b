"""Detectors of saturation: tables worked out by hand from llm-d-router's rules."""

import msgspec
import pytest

from epp.config.catalogue import PLUGINS
from epp.errors import EndpointsFull
from epp.model.candidate import Candidate
from epp.model.endpoint import Load
from epp.policy.plugins import Filter, SaturationDetector
from tests.policy.started import kept, started
from tests.strategies import candidate, endpoint, request


def detector(kind, **parameters):
    struct = msgspec.convert(parameters, PLUGINS[kind])
    found = started(struct)
    assert isinstance(found, SaturationDetector)
    assert isinstance(found, Filter)
    return found


def loaded(name, waiting, kv_usage):
    return candidate(name, Load(waiting=waiting, kv_usage=kv_usage, at=1.0))


UNREPORTED = candidate("new")


@pytest.mark.parametrize(
    ("parameters", "asked", "saturation", "names"),
    [
        ({}, [], 1, []),
        ({}, [loaded("a", 0, 0)], 0, ["a"]),
        # the greater of 2/5 and 0.4/0.8, and of 5/5 and 0.2/0.8
        ({}, [loaded("a", 2, 0.4), loaded("b", 5, 0.2)], 0.75, ["a"]),
        ({}, [loaded("a", 10, 0)], 2, ["a"]),  # none is below: all
        ({}, [loaded("a", 0, 0), UNREPORTED], 0.5, ["a"]),
        ({}, [UNREPORTED], 1, ["new"]),
        # those that never reported do not count; the filter is as before
        ({"stalenessPolicy": "ignore"}, [loaded("a", 1, 0), UNREPORTED], 0.2, ["a"]),
        ({"stalenessPolicy": "ignore"}, [UNREPORTED], 0, ["new"]),
        ({"stalenessPolicy": "ignore"}, [], 1, []),
        # below 5 * 1.2 and 0.8 * 1.2, saturation all the same
        ({"headroom": 0.2}, [loaded("a", 5, 0.2), loaded("b", 6, 0)], 1.1, ["a"]),
        ({"headroom": 0.25}, [loaded("a", 0, 0.9), loaded("b", 0, 1.0)], 0.95 / 0.8, ["a"]),
        (
            {"queueDepthThreshold": 10, "kvCacheUtilThreshold": 0.5},
            [loaded("a", 4, 0), loaded("b", 0, 0.5)],
            0.7,
            ["a"],
        ),
    ],
)
def test_utilization(parameters, asked, saturation, names):
    found = detector("utilization-detector", **parameters)
    assert found.saturation(asked) == pytest.approx(saturation)
    assert kept(found.filter(request(), asked)) == names


def sent(name, requests, tokens):
    return candidate(name, requests=requests, in_flight_tokens=tokens)


HALF = {"maxConcurrency": 10, "maxTokenConcurrency": 1000}


@pytest.mark.parametrize(
    ("parameters", "asked", "saturation", "names"),
    [
        (HALF, [], 1, []),
        (HALF, [sent("a", 3, 9999), sent("b", 10, 0)], 13 / 20, ["a"]),
        (
            {**HALF, "concurrencyMode": "tokens"},
            [sent("a", 99, 500), sent("b", 0, 1000)],
            0.75,
            "a",
        ),
        # the greater of 3/10 and 500/1000, and of 10/10 and 0
        ({**HALF, "concurrencyMode": "hybrid"}, [sent("a", 3, 500), sent("b", 10, 0)], 0.75, "a"),
        ({**HALF, "headroom": 0.25}, [sent("a", 11, 0), sent("b", 12, 0)], 23 / 20, "a"),
        (
            {**HALF, "concurrencyMode": "tokens", "headroom": 0.25},
            [sent("a", 0, 1249), sent("b", 0, 1250)],
            2499 / 2000,
            "a",
        ),
        (HALF, [sent("a", 10, 0)], 1, []),
    ],
)
def test_concurrency(parameters, asked, saturation, names):
    found = detector("concurrency-detector", **parameters)
    assert found.saturation(asked) == pytest.approx(saturation)
    if asked and not names:
        with pytest.raises(EndpointsFull, match="as many as `concurrency-detector` allows"):
            found.filter(request(), asked)
    else:
        assert kept(found.filter(request(), asked)) == list(names)


def most_saturated(**stages):
    struct = msgspec.convert(
        {"detectors": ["reported", "sent"], "stages": stages}, PLUGINS["max-saturation-detector"]
    )
    reported = detector("utilization-detector")
    return started(struct, reported=reported, sent=detector("concurrency-detector", **HALF))


def in_role(role, waiting, requests):
    labels = {"llm-d.ai/role": role} if role else {}
    place = endpoint(role or "none", labels=labels)
    return Candidate(endpoint=place, load=Load(waiting=waiting, at=1.0), requests=requests)


@pytest.mark.parametrize(
    ("stages", "asked", "saturation"),
    [
        # what is reported is the mean of 4/5 and 0, what was sent 9 of 20
        ({}, [in_role("prefill", 4, 0), in_role("", 0, 9)], 9 / 20),
        # reported of prefill alone: 4/5; sent of both
        ({"reported": ["prefill"]}, [in_role("prefill", 4, 0), in_role("", 0, 9)], 0.8),
        ({"sent": ["prefill", "decode"]}, [in_role("prefill", 0, 0), in_role("", 0, 9)], 0.9),
        ({"reported": ["prefill"]}, [in_role("decode", 9, 5)], 0.5),  # no endpoint: 0
        ({"sent": ["decode"]}, [in_role("both", 2, 5)], 0.5),
    ],
)
def test_the_most_saturated(stages, asked, saturation):
    assert most_saturated(**stages).saturation(asked) == pytest.approx(saturation)


@pytest.mark.parametrize(
    ("kind", "parameters", "said"),
    [
        (
            "utilization-detector",
            {"queueDepthThreshold": 0},
            "`queueDepthThreshold` is 0, not above 0",
        ),
        ("utilization-detector", {"kvCacheUtilThreshold": 1.5}, "is 1.5, above 1"),
        ("utilization-detector", {"headroom": -0.1}, "`headroom` is -0.1, below 0"),
        ("utilization-detector", {"metricsStalenessThreshold": "soon"}, "`soon` is not a duration"),
        ("concurrency-detector", {"maxConcurrency": 0}, "is 0, not above 0"),
        ("concurrency-detector", {"concurrencyMode": "all"}, "Invalid enum value 'all'"),
        ("max-saturation-detector", {"detectors": []}, "`detectors` is empty"),
        ("max-saturation-detector", {"detectors": ["a", "a"]}, "one of them twice"),
        ("max-saturation-detector", {"detectors": ["a"], "stages": {"b": []}}, "not one of"),
    ],
)
def test_what_is_out_of_range_is_an_error(kind, parameters, said):
    with pytest.raises(msgspec.ValidationError, match=said):
        msgspec.convert(parameters, PLUGINS[kind])
