"""What plug-ins tell each other of candidates: the defaults, and how producers are named."""

import pytest

from epp.config.plugins import Plugins
from epp.config.schema import PluginSpec
from epp.errors import ConfigError
from epp.model.request import RequestId
from epp.model.request_events import FirstToken
from epp.policy.attribute_sources import (
    FROM_FLEET,
    EndpointLoad,
    InFlightLoad,
    LatencyPredictionInfo,
    MultimodalMatchInfo,
    PrefixMatch,
    PrefixMatchInfo,
    SessionId,
    find_producer,
)
from tests.model.rig import Rig
from tests.strategies import candidate, request, text

ASKED = [
    candidate("pod-0", prompt_tokens=100, cached_tokens=64, requests=3, in_flight_tokens=500),
    candidate("pod-1", prompt_tokens=100),
]


def test_the_fleet_is_the_default():
    assert FROM_FLEET.prefix_matches(request(), ASKED) == [
        PrefixMatch(64, 100),
        PrefixMatch(0, 100),
    ]
    assert FROM_FLEET.in_flight(request(), ASKED) == [
        EndpointLoad(3, 500, 36),
        EndpointLoad(0, 0, 100),
    ]
    assert FROM_FLEET.session_id(request()) == ""


def test_the_share_of_a_match():
    assert [PrefixMatch(*each).ratio for each in ((0, 0), (1, 4), (5, 4))] == [0, 0.25, 1]


@pytest.mark.parametrize("length", [17, 32, 33, 47, 48, 1024])
def test_a_repeated_prompt_of_token_ids_is_whole_whether_or_not_it_ends_a_block(length):
    rig, ids = Rig(1, token_block=16), list(range(length))
    rig.serve("pod-0", "first", ids)
    (found,) = FROM_FLEET.prefix_matches(request(), list(rig.ask(ids).values()))
    assert found.ratio == 1


def test_tokens_are_in_flight_until_the_first_of_the_answer():
    rig = Rig(2)
    rig.send("pod-0", "a", text(1000))
    rig.send("pod-0", "b", text(500, "other"))
    sent = rig.ask()["pod-0"].in_flight_tokens
    assert sent == 1500
    assert rig.ask()["pod-1"].in_flight_tokens == 0
    rig.apply(FirstToken(RequestId("a")))
    assert rig.ask()["pod-0"].in_flight_tokens == 500
    cached = rig.cached(text(1000))["pod-0"]
    assert cached
    rig.send("pod-0", "c", text(1000))
    assert rig.ask()["pod-0"].in_flight_tokens == 500 + 1000 - cached


def started(*types):
    plugins = Plugins([PluginSpec(type=each) for each in types], lambda _: 0)
    plugins._starting.append(types[0])
    return plugins


APPROX, PRECISE = "approx-prefix-cache-producer", "precise-prefix-cache-producer"


def test_a_name_means_the_producer_of_the_file_or_else_the_default():
    listed = started(APPROX)
    assert find_producer(listed, "", PrefixMatchInfo) is FROM_FLEET
    assert find_producer(listed, APPROX, PrefixMatchInfo) is FROM_FLEET
    assert find_producer(listed, PRECISE, PrefixMatchInfo) is FROM_FLEET
    assert listed[APPROX].prefix_matches(request(), ASKED) == FROM_FLEET.prefix_matches(
        request(), ASKED
    )
    unlisted = started("queue-scorer", "inflight-load-producer")
    assert find_producer(unlisted, "", PrefixMatchInfo) is FROM_FLEET
    assert find_producer(unlisted, "", InFlightLoad) is FROM_FLEET
    assert find_producer(unlisted, "", SessionId) is FROM_FLEET


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        (LatencyPredictionInfo, "predicted-latency-producer"),
        (MultimodalMatchInfo, "mm-embeddings-cache-producer"),
    ],
)
def test_the_producer_of_what_the_fleet_does_not_know_is_added(kind, default):
    plugins = started("queue-scorer")
    added = find_producer(plugins, "", kind)
    assert isinstance(added, kind)
    assert plugins[default] is find_producer(plugins, default, kind) is added
    assert list(plugins) == [each.name for each in plugins.specs] == ["queue-scorer", default]
    assert {each.plugin for each in plugins.subscriptions} == {default}


@pytest.mark.parametrize("name", ["random-picker", APPROX])
def test_an_added_producer_must_be_one(name):
    with pytest.raises(ConfigError, match="is not a latency prediction info"):
        find_producer(started("queue-scorer", APPROX), name, LatencyPredictionInfo)


@pytest.mark.parametrize(
    ("name", "said"),
    [("aprox", "no plug-in is named `aprox`"), ("queue-scorer", "is not a prefix match info")],
)
def test_a_name_of_no_producer_is_an_error(name, said):
    with pytest.raises(ConfigError, match=said):
        find_producer(started("queue-scorer"), name, PrefixMatchInfo)
