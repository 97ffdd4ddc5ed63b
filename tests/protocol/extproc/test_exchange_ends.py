"""How an exchange ends: by itself, by an error, by a client that leaves, and after a wait."""

import pytest

from epp.errors import NoEndpoints, Overloaded, PickerFault
from epp.model.decision import Decision
from epp.model.endpoint import Target
from epp.model.request import Usage
from epp.model.request_events import Aborted, Failure, Served, Unobserved
from epp.protocol.extproc.director import PendingDecision
from epp.protocol.extproc.messages import (
    BodyMode,
    BodyReply,
    Chunk,
    Modes,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    TrailersReply,
)
from epp.protocol.extproc.record import Outcome
from epp.protocol.extproc.step import Step, Wants
from tests.protocol.extproc.conversation import (
    CHAT,
    OK,
    POD,
    SSE,
    Machine,
    Stub,
    body,
    chat_body,
    error_of,
    exchange,
    headers,
    outcome,
    play,
)


class Failing(Stub):
    """A director that fails on events."""

    def observe(self, event, now):
        super().observe(event, now)
        raise KeyError("mine")


LAST = ResponseBody(body=b"{}", end_of_stream=True)
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    "end",
    [
        lambda machine: machine.receive(LAST, 2),
        lambda machine: machine.cancelled(2),
        lambda machine: machine.half_closed(2),
    ],
    ids=["whole", "reset", "half-closed"],
)
def test_an_end_is_reported_once_and_recorded_whatever_its_event_raises(end):
    machine = exchange(Failing())
    play(machine, [headers(), body(chat_body())])
    plain = {":status": "200", "content-type": "application/json"}
    machine.receive(ResponseHeaders(headers=plain), 1)
    with pytest.raises(KeyError):
        end(machine)
    assert machine.exchange.fail(PickerFault("it raised"), 2) == Step([], Wants.END)
    machine.cancelled(3)
    assert len(machine.stub.events) == 1
    assert [record.finished_at for record in machine.stub.closed] == [2]


class TestEnds:
    def routed(self) -> Machine:
        machine = exchange()
        play(machine, [headers(), body(chat_body())])
        return machine

    def test_half_close_after_the_request(self):
        machine = self.routed()
        machine.half_closed(5)
        machine.receive(ResponseHeaders(headers=OK, served=Target("10.0.0.2:8000")), 6)
        assert machine.wants() is Wants.END
        assert machine.stub.events == [Unobserved(machine.record.id)]
        assert machine.stub.closed[0].outcome is Outcome.UNOBSERVED

    def test_half_close_before_anything(self):
        machine = exchange()
        machine.half_closed(0)
        assert machine.stub.events == []
        assert machine.stub.closed[0].outcome is Outcome.ABORTED

    @pytest.mark.parametrize(
        ("pieces", "expected", "event"),
        [
            (SSE, Outcome.COMPLETED, "Finished"),
            ((SSE[0], SSE[1].removesuffix(DONE), DONE), Outcome.COMPLETED, "Finished"),
            ((*SSE, b"\n"), Outcome.ABORTED, "Aborted"),
            ((SSE[0], SSE[1].removesuffix(DONE)), Outcome.ABORTED, "Aborted"),
        ],
        ids=["with the usage", "alone", "not the last piece", "missing"],
    )
    def test_a_client_that_leaves_at_the_last_event_has_seen_all(self, pieces, expected, event):
        machine = self.routed()
        play(machine, [ResponseHeaders(headers=OK), *(ResponseBody(body=each) for each in pieces)])
        machine.cancelled(9)
        assert machine.stub.closed[0].outcome is expected
        assert machine.stub.closed[0].usage == Usage(9, 2, 4)
        assert machine.stub.kinds == ["FirstToken", event]

    @pytest.mark.parametrize("point", range(6))
    def test_reset_at_every_point_ends_the_exchange_once(self, point):
        machine = exchange()
        messages = [
            headers(),
            body(chat_body()[:5], end=False),
            body(chat_body()[5:]),
            ResponseHeaders(headers=OK),
            ResponseBody(body=SSE[0]),
        ]
        play(machine, messages[:point])
        machine.cancelled(9)
        machine.cancelled(10)
        machine.half_closed(11)
        assert len(machine.stub.closed) == 1
        assert machine.stub.closed[0].outcome is Outcome.ABORTED
        assert machine.stub.closed[0].finished_at == 9
        routed = point >= 3
        ends = [kind for kind in machine.stub.kinds if kind != "FirstToken"]
        assert ends == (["Aborted"] if routed else [])
        assert machine.receive(ResponseBody(body=b"late"), 12) == []

    def test_tokens_streamed_before_a_disconnect_are_counted(self):
        machine = self.routed()
        machine.receive(ResponseHeaders(headers=OK), 2)
        machine.receive(ResponseBody(body=SSE[0]), 3)
        machine.cancelled(4)
        assert machine.stub.events[-1] == Aborted(machine.record.id, 1)

    @pytest.mark.parametrize(("status", "failure"), [("400", None), ("503", Failure.GATEWAY)])
    def test_error_status_means_that_nothing_was_computed(self, status, failure):
        machine = self.routed()
        machine.receive(ResponseHeaders(headers={":status": status}, end_of_stream=True), 3)
        assert machine.stub.events == [Aborted(machine.record.id, refused=True, failure=failure)]
        assert machine.stub.closed[0].status == int(status)

    @pytest.mark.parametrize(("first", "status"), [([headers()], "408"), ([], "426"), ([], "301")])
    def test_answer_of_the_proxys_own_before_any_decision_is_no_completion(self, first, status):
        # Envoy shows what it answers to requests that are not shown: too old, too large, broken.
        answer = ResponseHeaders(headers={":status": status}, end_of_stream=True)
        machine = exchange()
        play(machine, [*first, answer])
        assert machine.stub.closed[0].outcome is Outcome.ABORTED

    @pytest.mark.parametrize("waits", [False, True])
    def test_half_close_of_a_proxy_that_announced_its_modes_may_be_a_reset(self, waits):
        for reset, ended in ((True, Outcome.ABORTED), (False, Outcome.UNOBSERVED)):
            machine = exchange(Stub(PendingDecision()) if waits else None)
            play(machine, [RequestHeaders(headers=CHAT, modes=Modes()), body(chat_body())])
            machine.half_closed(5)
            if waits:
                machine.resume(Decision(endpoints=(POD,)), 5)
            assert machine.wants() is Wants.NEXT
            assert machine.stub.closed == []
            machine.cancelled(6) if reset else machine.half_closed(6)
            assert machine.wants() is Wants.END
            assert [record.outcome for record in machine.stub.closed] == [ended]

    @pytest.mark.parametrize("request_mode", [m for m in BodyMode if m is not BodyMode.GRPC])
    def test_reset_of_a_proxy_that_shows_no_response_leaves_the_request_running(self, request_mode):
        # Envoy 1.40: with `response_header_mode: SKIP` it resets the stream when it has the
        # request; if the client leaves, it half-closes before.
        modes = Modes(request_mode, BodyMode.NONE)
        for left, ended in ((False, Outcome.UNOBSERVED), (True, Outcome.ABORTED)):
            machine = exchange()
            unseen = request_mode is BodyMode.NONE
            play(
                machine,
                [
                    RequestHeaders(headers=CHAT, modes=modes),
                    *([] if unseen else [body(chat_body())]),
                ],
            )
            if left:
                machine.half_closed(5)
            machine.cancelled(5)
            assert [record.outcome for record in machine.stub.closed] == [ended]
            name = machine.record.id
            assert machine.stub.events == [Aborted(name) if left else Unobserved(name)]

    def test_reset_before_the_whole_request_leaves_nothing_running(self):
        modes = Modes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.NONE)
        machine = exchange()
        opaque = CHAT | {":path": "/v1/audio/transcriptions"}
        play(machine, [RequestHeaders(headers=opaque, modes=modes), body(b"a", end=False)])
        machine.cancelled(5)
        assert machine.stub.events == [Aborted(machine.record.id)]

    def test_reset_before_the_decision_leaves_nothing_unobserved(self):
        machine = exchange()
        modes = Modes(BodyMode.BUFFERED, BodyMode.NONE)
        play(machine, [RequestHeaders(headers=CHAT, modes=modes)])
        machine.cancelled(5)
        assert machine.stub.closed[0].outcome is Outcome.ABORTED

    @pytest.mark.parametrize(
        "more",
        [
            {},
            {"content-type": "application/grpc"},
            {"endpoint-load-metrics": "TEXT named_metrics.num_requests_waiting=3"},
        ],
    )
    def test_response_only_stream_passes(self, more):
        machine = exchange()
        head = ResponseHeaders(headers=OK | more, served=Target("1.2.3.4:5"))
        seen = outcome(play(machine, [head, ResponseBody(body=b"x", end_of_stream=True)]))
        assert (seen.response, seen.response_ended) == (b"x", True)
        assert machine.stub.events == []

    @pytest.mark.parametrize("at_first", [True, False])
    def test_served_elsewhere_is_reported_once(self, at_first):
        machine = self.routed()
        served = Target("10.0.0.2:8000")
        machine.receive(ResponseHeaders(headers=OK, served=served if at_first else None), 3)
        machine.receive(ResponseBody(body=b"x", served=served), 4)
        assert machine.stub.events[0] == Served(machine.record.id, served)
        assert [type(event) for event in machine.stub.events].count(Served) == 1

    @pytest.mark.parametrize("served", ["10.0.0.1:8000", "10.0.0.2:8000"])
    @pytest.mark.parametrize("tried", ["1", "2", "3", ""])
    def test_that_the_proxy_tried_again_elsewhere_is_reported(self, served, tried):
        machine = self.routed()
        # Envoy: `include_attempt_count_in_response`.
        said = OK | ({"x-envoy-attempt-count": tried} if tried else {})
        machine.receive(ResponseHeaders(headers=said, served=Target(served)), 3)
        retried = tried in {"2", "3"} and served == "10.0.0.2:8000"
        assert machine.stub.events[0] == Served(machine.record.id, Target(served), retried=retried)


MALFORMED, NAMELESS, MESSAGES = "malformed-request", "missing-model", b'"messages":[{}]}'
BAD_BODIES = {
    "empty": (b"", MALFORMED, "empty"),
    "truncated": (b"{", MALFORMED, "not valid JSON: Input data was truncated"),
    "after a surrogate pair": (b'{"x":"\\ud83d\\ude00"', MALFORMED, "data was truncated"),
    "in a surrogate pair": (b'{"x":"\\ud83d"}', MALFORMED, "not valid JSON: its last string ends"),
    "unclosed": (b'{"model":"m"', MALFORMED, "not valid JSON"),
    "not an object": (b"[1]", MALFORMED, "Expected `object`"),
    "model a number": (b'{"model":5}', MALFORMED, "`model` must be"),
    "messages": (b'{"model":"m","messages":"x"}', MALFORMED, "$.messages"),
    "no messages": (b'{"model":"m"}', "missing-prompt", "`messages`"),
    "no model": (b"{" + MESSAGES, NAMELESS, "`model`"),
    "empty model": (b'{"model":"",' + MESSAGES, NAMELESS, "`model`"),
    "null model": (b'{"model":null,' + MESSAGES, NAMELESS, "`model`"),
    "not UTF-8": (b'{"model":"\xff"}', MALFORMED, "utf-8"),
    "deep": (b'{"model":"m","x":' + b"[" * 99_999, "nested-too-deeply", "deep"),
}


class TestErrors:
    @pytest.mark.parametrize(("data", "reason", "says"), BAD_BODIES.values(), ids=BAD_BODIES)
    def test_bad_bodies(self, data, reason, says):
        machine = exchange()
        machine.receive(headers(), 0)
        status, error, sent = error_of(machine.receive(body(data), 1))
        assert status == 400
        assert error["code"] == sent["x-warmpick-reason"] == reason
        assert error["type"] == "invalid_request_error"
        assert says in error["message"]
        assert sent["content-type"] == "application/json"
        assert machine.wants() is Wants.END
        assert machine.stub.requests == []
        assert machine.stub.closed[0].outcome is Outcome.REJECTED

    def test_numbers_that_python_cannot_hold_pass(self):
        data = chat_body()[:-1] + b', "temperature": 1e400}'
        assert outcome(play(exchange(), [headers(), body(data)])).request == data

    def test_body_over_the_limit(self):
        machine = exchange(max_body_bytes=10)
        machine.receive(headers(), 0)
        assert machine.receive(body(b"x" * 10, end=False), 1) == []
        status, error, _ = error_of(machine.receive(body(b"x", end=False), 2))
        assert status == 413
        assert "10 bytes" in error["message"]

    def test_no_endpoints(self):
        machine = exchange(Stub(NoEndpoints("nobody", retry_after=1)))
        machine.receive(headers(), 0)
        status, error, sent = error_of(machine.receive(body(chat_body()), 1))
        assert (status, error["message"]) == (503, "nobody")
        assert sent["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"
        assert sent["retry-after"] == "1"

    def test_messages_out_of_place_raise_nothing(self):
        for first in (
            body(b"x"),
            RequestTrailers(),
            ResponseBody(body=b"x"),
            ResponseTrailers(),
        ):
            machine = exchange()
            machine.receive(first, 0)
            machine.receive(first, 1)
            machine.cancelled(2)
            assert machine.wants() is Wants.END


class TestPending:
    def waiting(self) -> Machine:
        machine = exchange(Stub(PendingDecision()))
        assert play(machine, [headers(), body(chat_body())]) == []
        assert machine.wants() is Wants.DECISION
        return machine

    def test_resumes_where_it_stopped(self):
        machine = self.waiting()
        seen = outcome(machine.resume(Decision(endpoints=(POD,)), 5))
        assert (seen.request, seen.destination) == (chat_body(), "10.0.0.1:8000")
        assert machine.record.decided_at == 5
        assert machine.exchange.pending is None

    def test_keeps_the_body_once(self):
        machine = self.waiting()
        assert machine.stub.requests[0].prompts
        assert machine.record.request is not None
        assert (machine.record.request.prompts, machine.record.request.body) == ((), b"")
        assert machine.record.request.id == machine.stub.requests[0].id

    def test_ends_with_an_error(self):
        machine = self.waiting()
        status, _, sent = error_of(machine.resume(Overloaded("full", retry_after=3), 5))
        assert (status, sent["retry-after"]) == (429, "3")
        assert machine.stub.closed[0].outcome is Outcome.REJECTED

    @pytest.mark.parametrize("made", [Decision(endpoints=(POD,)), Overloaded("full")])
    def test_decision_after_a_reset_is_undone(self, made):
        machine = self.waiting()
        machine.cancelled(4)
        assert machine.resume(made, 5) == []
        undone = [Aborted(machine.record.id, refused=True)]
        assert machine.stub.events == (undone if isinstance(made, Decision) else [])

    def test_half_close_waits_for_the_decision(self):
        machine = self.waiting()
        machine.half_closed(4)
        assert machine.wants() is Wants.DECISION
        assert outcome(machine.resume(Decision(endpoints=(POD,)), 5)).request == chat_body()
        assert machine.wants() is Wants.END
        assert machine.stub.closed[0].outcome is Outcome.UNOBSERVED

    def test_body_that_comes_while_pending_is_kept(self):
        machine = exchange(Stub(PendingDecision()), max_body_bytes=3)  # of those that are read
        head = RequestHeaders(headers={":method": "POST", ":path": "/tokenize"})
        play(machine, [head, body(b"ab", end=False), body(b"cd", end=False), RequestTrailers()])
        assert machine.proceed(4) == []
        replies = machine.resume(Decision(endpoints=(POD,)), 5)
        assert replies[1:] == [Chunk(False, b"abcd", False), TrailersReply(response=False)]

    @pytest.mark.parametrize(
        ("end", "reply"), [(body(b""), BodyReply(False)), (RequestTrailers(), TrailersReply(False))]
    )
    def test_each_piece_that_comes_while_pending_is_answered_if_they_are_streamed(self, end, reply):
        # Envoy sends them at once with `send_body_without_waiting_for_header_response`.
        machine = exchange(Stub(PendingDecision()))
        head = RequestHeaders(headers=CHAT, modes=Modes(BodyMode.STREAMED))
        assert play(machine, [head, *[body(b"x", end=False)] * 200, end]) == []
        _, *replies = machine.resume(Decision(endpoints=(POD,)), 5)
        assert replies == [BodyReply(False)] * 200 + [reply]

    def test_body_that_comes_while_pending_has_a_limit(self):
        data = chat_body()
        machine = exchange(Stub(PendingDecision()), max_body_bytes=len(data))
        head = RequestHeaders(headers=CHAT, modes=Modes(BodyMode.BUFFERED))
        play(machine, [head, body(data, end=False)])
        assert machine.wants() is Wants.DECISION
        assert error_of(machine.receive(body(b" "), 2))[0] == 413
