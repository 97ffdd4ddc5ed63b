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


def test_a_client_is_told_nothing_unless_that_is_asked_for():
    assert told(()) == {}


@pytest.mark.parametrize("served", ["10.0.0.7:3000", "[fd00::1]:3000"])
def test_a_client_is_told_who_served_by_the_gateways_account(served):
    assert told((served_header,), Target(served)) == {SERVED: served}


def test_a_gateway_that_does_not_say_who_served_is_told_of():
    assert told((served_header,)) == {SERVED: "fail: missing destination endpoint served metadata"}


def test_several_things_are_told():
    assert told((decision_header, served_header)).keys() == {DECISION, SERVED}
