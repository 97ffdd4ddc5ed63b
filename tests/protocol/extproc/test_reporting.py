"""What reporters say of a response's usage goes with its last message."""

import json

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as upstream

from epp.protocol.extproc.messages import (
    BodyMode,
    BodyReply,
    Chunk,
    Modes,
    Reporting,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    TrailersReply,
)
from tests.protocol.extproc.codecs import CODECS
from tests.protocol.extproc.conversation import CHAT, OK, body, chat_body, exchange, play

USAGE = json.dumps({"usage": {"prompt_tokens": 5, "completion_tokens": 2}}).encode()


def total(usage):
    return "envoy.lb", "total", float(usage.prompt_tokens + usage.completion_tokens)


def nothing(_):
    return None


def replies_to(*response, mode=BodyMode.FULL_DUPLEX_STREAMED, reporters=(total, nothing)):
    machine = exchange(reporters=reporters)
    modes = Modes(response=mode)
    asked = [RequestHeaders(headers=CHAT, modes=modes), body(chat_body())]
    replies = play(machine, [*asked, ResponseHeaders(headers=OK), *response])
    return replies, machine.record


@pytest.mark.parametrize("mode", [BodyMode.FULL_DUPLEX_STREAMED, BodyMode.STREAMED])
def test_the_last_piece_carries_what_is_reported(mode):
    pieces = ResponseBody(body=USAGE[:20]), ResponseBody(body=USAGE[20:], end_of_stream=True)
    replies, record = replies_to(*pieces, mode=mode)
    last = replies[-1]
    assert isinstance(last, Reporting)
    assert isinstance(last.reply, Chunk | BodyReply)
    assert last.reported == (("envoy.lb", "total", 7.0),)
    assert not any(isinstance(each, Reporting) for each in replies[:-1])
    assert record.usage.completion_tokens == 2


def test_trailers_carry_it_where_they_end_the_response():
    replies, _ = replies_to(ResponseBody(body=USAGE), ResponseTrailers())
    assert isinstance(replies[-1], Reporting)
    assert isinstance(replies[-1].reply, TrailersReply)


@pytest.mark.parametrize("reporters", [(), (nothing,)])
def test_nothing_is_said_where_nothing_is_reported(reporters):
    end = ResponseBody(body=USAGE, end_of_stream=True)
    assert isinstance(replies_to(end, reporters=reporters)[0][-1], Chunk)
    assert isinstance(replies_to(ResponseBody(body=b"{}", end_of_stream=True))[0][-1], Chunk)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_reports_are_numbers_in_the_dynamic_metadata(codec):
    reported = ("envoy.lb", "total", 7.0), ("mine", "cost", 2.0), ("envoy.lb", "other", 1.0)
    said = codec.encode(Reporting(Chunk(True, b"x", True), reported))
    message = upstream.ProcessingResponse.FromString(said)
    assert message.response_body.response.body_mutation.streamed_response.body == b"x"
    spaces = message.dynamic_metadata.fields
    assert spaces["envoy.lb"].struct_value.fields["total"].number_value == 7
    assert spaces["envoy.lb"].struct_value.fields["other"].number_value == 1
    assert spaces["mine"].struct_value.fields["cost"].number_value == 2
