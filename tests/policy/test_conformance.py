"""The filter of the conformance suite: endpoints that a request's header names."""

import pytest

from epp.app.cache_sources import build_fleet
from epp.config.file import load
from epp.model.candidate import Candidate
from epp.model.endpoint import Endpoint, Load
from epp.model.events import EndpointUpserted
from epp.policy.conformance import SELECTION, HeaderBasedTestingFilter
from epp.policy.scheduler import Scheduler
from tests.policy.routing import routed
from tests.strategies import SECRET, endpoint, request


def candidate(name, address, port):
    return Candidate(endpoint=Endpoint("default", name, address, port), load=Load())


POOL = [
    candidate("a-0", "10.0.0.1", 3000),
    candidate("a-1", "10.0.0.1", 3002),
    candidate("b-0", "10.0.0.2", 3000),
    candidate("b-1", "10.0.0.2", 3002),
    candidate("c-0", "fd00::1", 3000),
]
EVERYONE = [each.endpoint.name for each in POOL]


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ({}, EVERYONE),
        ({SELECTION: ""}, EVERYONE),
        ({SELECTION: "10.0.0.1"}, ["a-0", "a-1"]),
        ({SELECTION: "10.0.0.1:3002"}, ["a-1"]),
        ({SELECTION: "10.0.0.2,10.0.0.1:3000"}, ["a-0", "b-0", "b-1"]),
        ({SELECTION: " 10.0.0.2:3000 , 10.0.0.2:3000 ,"}, ["b-0"]),
        ({SELECTION: "[fd00::1]:3000"}, ["c-0"]),
        ({SELECTION: "fd00::1"}, ["c-0"]),
        ({SELECTION: "[FD00:0::1]:3000"}, ["c-0"]),
        ({SELECTION: "10.0.0.3,10.0.0.1"}, ["a-0", "a-1"]),
        ({SELECTION: "10.0.0.3"}, []),
        ({SELECTION: ","}, []),
        ({SELECTION: "10.0.0.1:3001"}, []),
        ({SELECTION: "10.0.0"}, []),
        ({"x-gateway-destination-endpoint": "10.0.0.1"}, EVERYONE),
    ],
)
def test_the_endpoints_that_the_header_names_keep_their_order(said, left):
    kept = HeaderBasedTestingFilter().filter(request(headers=said), POOL)
    assert [each.endpoint.name for each in kept] == left


def test_the_model_server_is_asked_to_name_the_endpoint_that_was_picked():
    settings = load("plugins: [{type: destination-endpoint-served-verifier}]")
    fleet = build_fleet(settings, SECRET, 5)
    fleet.apply(EndpointUpserted(endpoint("a", "10.0.0.1", 3000)), 0.0)
    decision = routed(Scheduler(fleet, settings.scheduling, lambda _: 0), request(), 1.0)
    wanted = "x-conformance-test-served-endpoint:10.0.0.1:3000"
    assert decision.headers == (("x-echo-set-header", wanted),)
