"""What clients are told in response headers, when it is asked for."""

import json

import pytest

from epp.model.decision import Decision
from epp.model.endpoint import Endpoint, Target
from epp.model.request_events import Served
from epp.protocol.extproc.debug_headers import (
    CONFORMANCE_SERVED,
    decision_header,
    served_header,
)
from epp.protocol.extproc.messages import RequestBody, RequestHeaders, ResponseHeaders
from epp.protocol.extproc.names import DECISION
from tests.protocol.extproc.conversation import (
    CHAT,
    OK,
    POD,
    Stub,
    chat_body,
    exchange,
    outcome,
    play,
)

PREFILL = Endpoint("default", "prefill", "10.0.0.9", 8000)
AT = Target(f"{POD.address}:9000")
ASKED = [RequestHeaders(headers=CHAT), RequestBody(body=chat_body(), end_of_stream=True)]


def told(header_sources, served=None):
    """What the response headers have more than the model server's, by the proxy's account."""
    machine = exchange(header_sources=header_sources)
    play(machine, ASKED)
    return outcome(machine.receive(ResponseHeaders(headers=OK, served=served), 2)).response_headers


def test_no_debug_headers_by_default():
    assert told(()) == {}


@pytest.mark.parametrize("served", ["10.0.0.7:3000", "[fd00::1]:3000"])
def test_the_served_header_has_the_gateways_endpoint(served):
    assert told((served_header,), Target(served)) == {CONFORMANCE_SERVED: served}


def test_a_gateway_without_served_metadata_is_reported():
    assert told((served_header,)) == {
        CONFORMANCE_SERVED: "fail: missing destination endpoint served metadata"
    }


def test_several_header_sources_add_up():
    assert told((decision_header, served_header)).keys() == {DECISION, CONFORMANCE_SERVED}


def test_the_decision_names_the_stages_that_ran():
    prefill = Decision(endpoints=(PREFILL,), profile="prefill")
    machine = exchange(Stub(Decision(endpoints=(POD,), stages=(prefill,))))
    play(machine, ASKED)
    ((_, shown),) = decision_header(machine.record)
    assert json.loads(shown)["stages"] == {"prefill": PREFILL.target}


@pytest.mark.parametrize(
    ("served", "counts_as"), [(AT, POD.target), (PREFILL.target, PREFILL.target)]
)
def test_what_an_endpoint_is_reached_at_stands_for_it(served, counts_as):
    director = Stub(Decision(endpoints=(POD,), targets=(AT,)))
    machine = exchange(director)
    play(machine, ASKED)
    machine.receive(ResponseHeaders(headers=OK, served=served), 2)
    assert [each.target for each in director.events if isinstance(each, Served)] == [counts_as]
