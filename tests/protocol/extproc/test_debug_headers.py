"""What clients are told in response headers, when it is asked for."""

import pytest

from epp.model.endpoint import Target
from epp.protocol.extproc.debug_headers import DECISION, SERVED, decision_header, served_header
from epp.protocol.extproc.messages import RequestBody, RequestHeaders, ResponseHeaders
from tests.protocol.extproc.conversation import CHAT, OK, Stub, chat_body, exchange, outcome, play

ASKED = [RequestHeaders(headers=CHAT), RequestBody(body=chat_body(), end_of_stream=True)]


def told(header_sources, served=None):
    """What the response headers have more than the model server's, by the proxy's account."""
    machine = exchange(Stub(), header_sources=header_sources)
    play(machine, ASKED)
    return outcome(machine.receive(ResponseHeaders(headers=OK, served=served), 2)).response_headers


def test_no_debug_headers_by_default():
    assert told(()) == {}


@pytest.mark.parametrize("served", ["10.0.0.7:3000", "[fd00::1]:3000"])
def test_the_served_header_has_the_gateways_endpoint(served):
    assert told((served_header,), Target(served)) == {SERVED: served}


def test_a_gateway_without_served_metadata_is_reported():
    assert told((served_header,)) == {SERVED: "fail: missing destination endpoint served metadata"}


def test_several_header_sources_add_up():
    assert told((decision_header, served_header)).keys() == {DECISION, SERVED}
