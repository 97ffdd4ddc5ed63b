"""Which responses are left early, when, and what is said of them."""

import copy
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.request import Usage
from epp.model.request_events import Aborted, Finished, FirstToken, Unobserved
from epp.protocol.extproc.director import PendingDecision
from epp.protocol.extproc.messages import (
    BodyMode,
    BodyReply,
    HeadersReply,
    Modes,
    RequestBody,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
)
from epp.protocol.extproc.observation import AUTO, Observation, must_stay_reason
from epp.protocol.extproc.record import MustStayReason, Outcome
from epp.protocol.extproc.step import Wants
from tests.protocol.extproc.conversation import CHAT, OK, Stub, chat_body, exchange, play

DUPLEX, STREAMED = BodyMode.FULL_DUPLEX_STREAMED, BodyMode.STREAMED
LEAVABLE = Modes(DUPLEX, STREAMED)
PIECE = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
JSON = {":status": "200", "content-type": "application/json"}


@pytest.mark.parametrize(
    ("text", "one_in"),
    [
        ("all", 1),
        ("first", 0),
        ("sample:1/1", 1),
        ("sample:1/16", 16),
        ("sample:1/999999999", 10**9 - 1),
    ],
)
def test_forms(text, one_in):
    assert Observation.parse(text) == Observation(one_in)
    assert Observation.parse(str(Observation(one_in))) == Observation(one_in)


def test_auto_leaves_what_nobody_needs():
    assert Observation.parse("auto") == AUTO
    assert str(AUTO) == "auto"
    assert AUTO.ends_early(drawing(0))


@pytest.mark.parametrize(
    "text",
    [
        *("", "none", "ALL", "first\n", "sample", "sample:", "sample:16", "sample:2/3"),
        *("sample:1/0", "sample:1/-4", "sample:1/x", "sample:1/4 ", "sample:1/1.5"),
        *("sample:1/\u0664", "sample:1/9999999999"),
    ],
)
def test_malformed_choices_are_refused(text):
    with pytest.raises(ValueError, match="write auto, all, first or sample:1/N with N of 1"):
        Observation.parse(text)


def drawing(number):
    """A chance that draws this number."""
    return lambda _: number


@given(st.integers(2, 200))
def test_one_draw_in_n_stays(one_in):
    observation = Observation(one_in)
    leaving = [observation.ends_early(drawing(number)) for number in range(one_in)]
    assert leaving.count(False) == 1


@given(st.randoms(use_true_random=False))
def test_all_and_none_draw_nothing(chance):
    assert not Observation.parse("all").ends_early(chance.randrange)
    assert Observation.parse("first").ends_early(chance.randrange)


def test_the_sample_is_as_large_as_was_asked_for():
    randrange = random.Random(7).randrange  # noqa: S311 (a seed, for a test)
    observation = Observation(4)
    sequence = sum(not observation.ends_early(randrange) for _ in range(10_000))
    assert abs(sequence - 2_500) < 5 * (10_000 * 0.25 * 0.75) ** 0.5


@pytest.mark.parametrize("response", BodyMode)
@pytest.mark.parametrize("request_mode", BodyMode)
def test_ties(request_mode, response):
    modes = Modes(request_mode, response)
    assert must_stay_reason(modes, announced=False) is MustStayReason.UNANNOUNCED
    stays = MustStayReason.DUPLEX if response is DUPLEX else None
    assert must_stay_reason(modes, announced=True) is stays


def routed(*, modes=LEAVABLE, end_early=True, needed=False, reporters=(), **more):
    """An exchange whose request is answered, in these modes."""
    machine = exchange(Stub(needed=needed), end_early=end_early, reporters=reporters)
    head = RequestHeaders(headers=CHAT | more, modes=modes)
    play(machine, [head, RequestBody(body=chat_body(), end_of_stream=True)])
    return machine


def test_a_stream_is_closed_after_its_first_piece():
    machine = routed()
    assert machine.receive(ResponseHeaders(headers=OK), 2) == [HeadersReply(response=True)]
    assert machine.receive(ResponseBody(body=b""), 3) == [BodyReply(response=True)]
    assert machine.wants() is Wants.NEXT
    assert machine.receive(ResponseBody(body=PIECE), 4) == [BodyReply(response=True)]
    assert machine.wants() is Wants.END
    assert machine.receive(ResponseBody(body=PIECE), 5) == []
    machine.cancelled(6)
    assert machine.stub.events == [
        FirstToken(machine.record.id),
        Unobserved(machine.record.id, begun=True),
    ]
    (record,) = machine.stub.closed
    assert (record.outcome, record.finished_at) == (Outcome.UNOBSERVED, 4)
    assert (record.status, record.first_byte_at, record.usage) == (200, 4, None)
    assert record.must_stay is None


def test_a_stream_whose_end_is_needed_is_seen_to_it():
    machine = routed(needed=True)
    machine.receive(ResponseHeaders(headers=OK), 2)
    for _ in range(3):
        machine.receive(ResponseBody(body=PIECE), 3)
        assert machine.wants() is Wants.NEXT
    machine.receive(ResponseBody(body=USAGE + DONE), 4)
    machine.receive(ResponseBody(body=b"", end_of_stream=True), 5)
    assert machine.stub.asked == 1
    assert machine.stub.closed[0].outcome is Outcome.COMPLETED
    assert machine.stub.events[-1] == Finished(machine.record.id, Usage(9, 2), 4)


@pytest.mark.parametrize("end_early", [True, False])
def test_nobody_is_asked_where_it_stays_anyway(end_early):
    modes = Modes(DUPLEX, DUPLEX) if end_early else LEAVABLE
    machine = routed(modes=modes, end_early=end_early)
    machine.receive(ResponseHeaders(headers=OK), 2)
    machine.receive(ResponseBody(body=PIECE), 3)
    assert machine.wants() is Wants.NEXT
    assert machine.stub.asked == 0


@pytest.mark.parametrize("end", [b"", USAGE])
def test_a_stream_whose_first_piece_is_all_of_it_is_complete(end):
    machine = routed()
    machine.receive(ResponseHeaders(headers=OK), 2)
    machine.receive(ResponseBody(body=PIECE + end + DONE), 3)
    usage = Usage(9, 2) if end else None
    assert machine.stub.events[-1] == Finished(machine.record.id, usage, 1)
    assert machine.stub.closed[0].outcome is Outcome.COMPLETED


def test_usage_so_far_is_no_usage():
    machine = routed()
    machine.receive(ResponseHeaders(headers=OK), 2)
    machine.receive(ResponseBody(body=USAGE), 3)
    (record,) = machine.stub.closed
    assert (record.outcome, record.usage) == (Outcome.UNOBSERVED, None)


@pytest.mark.parametrize(
    ("modes", "told"),
    [
        (None, MustStayReason.UNANNOUNCED),
        (Modes(DUPLEX, DUPLEX), MustStayReason.DUPLEX),
        (Modes(BodyMode.BUFFERED, BodyMode.BUFFERED), None),
        (Modes(DUPLEX, BodyMode.NONE), None),
    ],
)
def test_where_the_proxy_cannot_go_on_alone_the_stream_stays_open(modes, told):
    machine = routed(modes=modes)
    machine.receive(ResponseHeaders(headers=OK), 2)
    machine.receive(ResponseBody(body=PIECE), 3)
    assert machine.wants() is Wants.NEXT
    machine.receive(ResponseBody(body=USAGE, end_of_stream=True), 4)
    (record,) = machine.stub.closed
    assert (record.outcome, record.usage) == (Outcome.COMPLETED, Usage(9, 2))
    assert record.must_stay is told


@pytest.mark.parametrize(
    ("headers", "more"),
    [
        (OK, {"x-llm-d-model-name-rewrite": "target"}),  # the name is put back in every event
        (JSON | {":status": "503"}, {}),  # an error is counted
        (OK, {"reporters": (lambda _: None,)}),  # its usage is for the proxy
    ],
)
def test_responses_to_be_edited_or_read_are_observed(headers, more):
    machine = routed(**more)
    machine.receive(ResponseHeaders(headers=headers), 2)
    machine.receive(ResponseBody(body=PIECE), 3)
    assert machine.wants() is Wants.NEXT
    machine.receive(ResponseBody(body=b"", end_of_stream=True), 4)
    assert machine.stub.closed[0].outcome is Outcome.COMPLETED


@pytest.mark.parametrize(
    ("path", "content_type"),
    [("/v1/audio/speech", "application/json"), (CHAT[":path"], "application/x-ndjson")],
)
def test_what_may_be_a_stream_is_left_too(path, content_type):
    machine = routed(**{":path": path})
    machine.receive(ResponseHeaders(headers=JSON | {"content-type": content_type}), 2)
    machine.receive(ResponseBody(body=b"{"), 3)
    assert machine.wants() is Wants.END
    assert machine.stub.closed[0].outcome is Outcome.UNOBSERVED


@pytest.mark.parametrize("asked", [[], [RequestBody(body=chat_body(), end_of_stream=True)]])
def test_a_response_without_a_decision_is_observed(asked):
    machine = exchange(Stub(PendingDecision()), end_early=True)
    head = [RequestHeaders(headers=CHAT, modes=LEAVABLE)] if asked else []
    answer = [ResponseHeaders(headers=OK, modes=LEAVABLE), ResponseBody(body=PIECE)]
    play(machine, [*head, *asked, *answer])
    assert (machine.wants(), machine.stub.asked) == (Wants.NEXT, 0)


def test_a_response_that_is_no_stream_is_observed():
    machine = exchange(end_early=True)
    head = RequestHeaders(headers=CHAT, modes=LEAVABLE)
    play(machine, [head, RequestBody(body=chat_body(stream=False), end_of_stream=True)])
    machine.receive(ResponseHeaders(headers=JSON), 2)
    machine.receive(ResponseBody(body=b'{"usage":{"prompt_tokens":9,'), 3)
    machine.receive(ResponseBody(body=b'"completion_tokens":2}}', end_of_stream=True), 4)
    assert machine.stub.events == [Finished(machine.record.id, Usage(9, 2), 0)]


def test_a_duplex_request_under_way_keeps_the_stream_open():
    machine = exchange(end_early=True)
    opaque = CHAT | {":path": "/v1/files"}
    machine.receive(RequestHeaders(headers=opaque, modes=LEAVABLE), 0)
    machine.receive(RequestBody(body=b"first half"), 1)
    machine.receive(ResponseHeaders(headers=OK), 2)
    machine.receive(ResponseBody(body=PIECE), 3)
    assert machine.wants() is Wants.NEXT
    machine.receive(RequestBody(body=b"second half", end_of_stream=True), 4)
    machine.receive(ResponseBody(body=PIECE), 5)
    assert machine.wants() is Wants.END


@pytest.mark.parametrize("mode", [BodyMode.NONE, STREAMED])
def test_a_request_that_the_proxy_passes_lets_the_stream_close(mode):
    machine = exchange(end_early=True)
    machine.receive(RequestHeaders(headers=CHAT, modes=Modes(mode, STREAMED)), 0)
    machine.receive(ResponseHeaders(headers=OK), 2)
    machine.receive(ResponseBody(body=PIECE), 3)
    assert machine.stub.closed[0].outcome is Outcome.UNOBSERVED


def test_the_proxys_own_response_is_observed():
    machine = exchange(end_early=True)
    machine.receive(RequestHeaders(headers=CHAT, modes=LEAVABLE), 0)
    machine.receive(ResponseHeaders(headers=OK), 1)
    machine.receive(ResponseBody(body=PIECE), 2)
    assert machine.wants() is Wants.REST


def test_a_client_that_goes_before_the_first_piece_is_seen():
    machine = routed()
    machine.receive(ResponseHeaders(headers=OK), 2)
    machine.cancelled(3)
    assert machine.stub.events == [Aborted(machine.record.id, 0)]


def test_sampled_responses_are_observed():
    machine = routed(end_early=False)
    machine.receive(ResponseHeaders(headers=OK), 2)
    machine.receive(ResponseBody(body=PIECE), 3)
    assert machine.wants() is Wants.NEXT


@pytest.mark.parametrize("form", ["auto", "all", "first", "sample:1/7"])
def test_a_copy_is_equal(form):
    observation = Observation.parse(form)
    assert copy.deepcopy(observation) == observation


CREATED = (
    b'event: response.created\ndata: {"response":{"tools":[{"type":"function"}]}}\n\n'
    b'event: response.in_progress\ndata: {"response":{"status":"in_progress"}}\n\n'
)
ADDED = b'event: response.output_item.added\ndata: {"item":{}}\n\n'


@pytest.mark.parametrize("size", [1, 7, 60, 1000])
@pytest.mark.parametrize("answer", [ADDED, b"event: error\r\ndata: {}\r\n\r\n"])
def test_what_a_stream_of_responses_opens_with_is_not_a_token(answer, size):
    # vLLM says so much before it computes anything.
    machine = exchange(end_early=True)
    head = RequestHeaders(headers=CHAT | {":path": "/v1/responses"}, modes=LEAVABLE)
    asked = b'{"model":"m","input":"hi","stream":true}'
    play(machine, [head, RequestBody(body=asked, end_of_stream=True), ResponseHeaders(headers=OK)])
    for at in range(0, len(CREATED), size):
        machine.receive(ResponseBody(body=CREATED[at : at + size]), 10)
    assert (machine.stub.events, machine.wants()) == ([], Wants.NEXT)
    for at in range(0, len(answer), size):
        machine.receive(ResponseBody(body=answer[at : at + size]), 20)
    assert machine.stub.events[0] == FirstToken(machine.record.id)
    assert (machine.record.first_byte_at, machine.wants()) == (20, Wants.END)


def test_responses_without_names_of_events_begin_with_their_first_byte():
    machine = exchange()
    head = RequestHeaders(headers=CHAT | {":path": "/v1/responses"}, modes=LEAVABLE)
    asked = b'{"model":"m","input":"hi","stream":true}'
    play(machine, [head, RequestBody(body=asked, end_of_stream=True), ResponseHeaders(headers=OK)])
    machine.receive(ResponseBody(body=b'data: {"type":"response.output_text.delta"}\n\n'), 10)
    assert machine.stub.events == [FirstToken(machine.record.id)]
