"""Rules of the exchange, one by one: what goes in, what must come out, in every body mode."""

import pytest

from epp.errors import NoEndpoints
from epp.model.request import Api, Usage
from epp.model.request_events import Finished, FirstToken
from epp.protocol.extproc.messages import (
    BodyMode,
    BodyReply,
    Chunk,
    HeadersReply,
    ImmediateReply,
    Message,
    Modes,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    TrailersReply,
)
from epp.protocol.extproc.record import Outcome
from epp.protocol.extproc.step import Wants
from tests.protocol.extproc.conversation import (
    CHAT,
    DUPLEX,
    OK,
    SSE,
    body,
    chat_body,
    error_of,
    exchange,
    headers,
    outcome,
    play,
    request_of,
)
from tests.reachable import longest_text


class TestFullDuplex:
    def test_headers_wait_for_the_body(self):
        machine = exchange()
        assert machine.receive(headers(), 0) == []
        assert machine.receive(body(chat_body()[:10], end=False), 1) == []
        replies = machine.receive(body(chat_body()[10:]), 2)
        first, second = replies
        assert isinstance(first, HeadersReply)
        assert first.mutation.clear_route_cache
        assert first.mutation.destination == "10.0.0.1:8000"
        assert dict(first.mutation.set_headers) == {
            "x-gateway-destination-endpoint": "10.0.0.1:8000"
        }
        assert second == Chunk(False, chat_body(), True)
        assert machine.stub.requests[0].api is Api.CHAT
        assert machine.record.decided_at == 2

    def test_text_is_not_kept_while_the_response_runs(self):
        machine = exchange(keep_body=True)
        data = chat_body(messages=[{"role": "user", "content": "x" * 20_000}])
        play(machine, [headers(), body(data), ResponseHeaders(headers=OK)])
        machine.stub.requests.clear()
        assert longest_text(machine) < 2_000

    def test_long_bodies_go_on_in_pieces_that_envoy_takes(self):
        data = chat_body(messages=[{"role": "user", "content": "x" * 200_000}])
        seen = outcome(play(exchange(), [headers(), body(data)]))
        assert seen.request == data
        assert seen.request_ended

    def test_body_that_is_an_exact_number_of_chunks_ends_once(self):
        data = b"x" * 124_000
        message = RequestHeaders(headers={":method": "POST", ":path": "/upload"})
        seen = outcome(play(exchange(), [message, body(data)]))
        assert (seen.request, seen.request_ended) == (data, True)

    def test_end_by_trailers(self):
        replies = play(exchange(), [headers(), body(chat_body(), end=False), RequestTrailers()])
        assert [type(reply) for reply in replies] == [HeadersReply, Chunk, TrailersReply]
        assert replies[1] == Chunk(False, chat_body(), False)

    def test_second_end_of_stream_is_ignored(self):
        machine = exchange()
        play(machine, [headers(), body(chat_body())])
        assert machine.receive(body(b""), 9) == []
        assert machine.receive(body(b"more"), 9) == []
        assert len(machine.stub.requests) == 1

    def test_response_passes_byte_for_byte(self):
        messages: list[Message] = [ResponseHeaders(headers=OK)]
        messages += [ResponseBody(body=chunk) for chunk in SSE]
        messages += [ResponseBody(body=b"", end_of_stream=True)]
        machine = exchange()
        seen = outcome(play(machine, [headers(), body(chat_body()), *messages]))
        assert seen.response == b"".join(SSE)
        assert seen.response_ended
        assert seen.order == [
            "request HeadersReply",
            "request Chunk",
            "response HeadersReply",
            "response Chunk",
        ]
        assert machine.stub.events == [
            FirstToken(machine.record.id),
            Finished(machine.record.id, Usage(9, 2, 4), 2),
        ]
        (record,) = machine.stub.closed
        assert record.outcome is Outcome.COMPLETED
        assert record.usage == Usage(9, 2, 4)
        assert (record.status, record.streaming, record.response_chunks) == (200, True, 2)
        assert record.first_byte_at == 3

    @pytest.mark.parametrize(
        ("first", "at"),
        [
            (b": keep-alive\n\n", 4),
            (b":\r\n\r\n", 4),
            (b": begins\n" + SSE[0], 3),
            (b": begins\r\ndata: {}\r\n\r\n", 3),
        ],
    )
    def test_a_comment_in_a_stream_is_no_first_token(self, first, at):
        machine = exchange()
        pieces = [ResponseBody(body=each) for each in (first, *SSE)]
        ended = ResponseBody(body=b"", end_of_stream=True)
        messages = [headers(), body(chat_body()), ResponseHeaders(headers=OK), *pieces, ended]
        seen = outcome(play(machine, messages))
        assert seen.response == first + b"".join(SSE)
        assert machine.stub.kinds == ["FirstToken", "Finished"]
        assert machine.stub.closed[0].first_byte_at == at

    def test_response_trailers_end_the_exchange(self):
        machine = exchange()
        replies = play(
            machine,
            [
                headers(),
                body(chat_body()),
                ResponseHeaders(headers=OK),
                ResponseBody(body=SSE[0]),
                ResponseTrailers(),
            ],
        )
        assert replies[-1] == TrailersReply(response=True)
        assert machine.wants() is Wants.END
        assert machine.stub.kinds == ["FirstToken", "Finished"]

    def test_unknown_path_passes_through_by_load_alone(self):
        machine = exchange(max_body_bytes=4)
        head = RequestHeaders(headers={":method": "POST", ":path": "/tokenize"})
        assert [type(each) for each in machine.receive(head, 0)] == [HeadersReply]
        assert machine.receive(body(b"not json", end=False), 1) == [
            Chunk(False, b"not json", False)
        ]
        assert machine.receive(body(b"!"), 2) == [Chunk(False, b"!", True)]
        assert machine.stub.requests[0].api is Api.OTHER
        assert machine.stub.requests[0].prompts == ()


class TestHeadersOnly:
    @pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/", ""])
    def test_get_is_routed(self, path):
        message = RequestHeaders(headers={":method": "GET", ":path": path}, end_of_stream=True)
        (reply,) = exchange().receive(message, 0)
        assert isinstance(reply, HeadersReply)
        assert reply.mutation.destination == "10.0.0.1:8000"

    @pytest.mark.parametrize(
        ("path", "answered"),
        [
            ("/v1/models", True),
            ("/v1/models?limit=5", True),
            ("/team-a/v1/models", True),
            ("/v1/models/m", False),
            ("/v1/models/", False),
            ("/v1/chat?next=/v1/models", False),
        ],
    )
    def test_the_picker_lists_the_models_if_it_knows_them(self, path, answered):
        machine = exchange(list_models=lambda: b'{"data":[]}')
        message = RequestHeaders(headers={":method": "GET", ":path": path}, end_of_stream=True)
        (reply,) = machine.receive(message, 1)
        if answered:
            assert isinstance(reply, ImmediateReply)
            assert (reply.status, reply.body) == (200, b'{"data":[]}')
            assert dict(reply.headers) == {"content-type": "application/json"}
            assert machine.wants() is Wants.END
            assert machine.record.outcome is Outcome.ANSWERED
        else:
            assert isinstance(reply, HeadersReply)
        assert bool(machine.stub.requests) is not answered

    def test_a_rewritten_path_counts_as_the_clients(self):
        machine = exchange(list_models=lambda: b"{}")
        asked = {":method": "GET", ":path": "/rewritten", "x-original-path": "/v1/models"}
        (reply,) = machine.receive(RequestHeaders(headers=asked, end_of_stream=True), 0)
        assert isinstance(reply, ImmediateReply)

    @pytest.mark.parametrize("method", ["HEAD", "DELETE", "OPTIONS"])
    def test_other_methods_go_to_an_endpoint(self, method):
        machine = exchange(list_models=lambda: b"{}")
        asked = {":method": method, ":path": "/v1/models"}
        (reply,) = machine.receive(RequestHeaders(headers=asked, end_of_stream=True), 0)
        assert isinstance(reply, HeadersReply)

    def test_models_that_are_not_known_yet_are_an_error(self):
        def unknown():
            raise NoEndpoints("none yet", reason="models-unknown")

        machine = exchange(list_models=unknown)
        message = RequestHeaders(
            headers={":method": "GET", ":path": "/v1/models"}, end_of_stream=True
        )
        status, error, _ = error_of(machine.receive(message, 0))
        assert (status, error["code"]) == (503, "models-unknown")
        assert machine.record.outcome is Outcome.REJECTED

    def test_subset_counts_for_a_get(self):
        message = RequestHeaders(
            headers={":method": "GET", ":path": "/x"}, end_of_stream=True, subset=("10.0.0.9",)
        )
        assert request_of(message).subset == ("10.0.0.9",)

    def test_post_without_a_body_is_refused(self):
        message = RequestHeaders(headers=CHAT, end_of_stream=True)
        status, error, sent = error_of(exchange().receive(message, 0))
        assert (status, error["code"], sent["x-warmpick-reason"]) == (
            400,
            "empty-body",
            "empty-body",
        )


class TestOtherModes:
    def test_buffered_answers_headers_at_once_and_routes_with_the_body(self):
        machine = exchange()
        head = RequestHeaders(headers=CHAT, modes=Modes(BodyMode.BUFFERED, BodyMode.BUFFERED))
        assert machine.receive(head, 0) == [HeadersReply(response=False)]
        (reply,) = machine.receive(body(chat_body()), 1)
        assert isinstance(reply, BodyReply)
        assert reply.mutation.destination == "10.0.0.1:8000"
        assert reply.mutation.body is None
        assert machine.receive(ResponseHeaders(headers=OK), 2) == [HeadersReply(response=True)]
        (reply,) = machine.receive(ResponseBody(body=b"{}", end_of_stream=True), 3)
        assert reply == BodyReply(response=True)

    def test_buffered_body_before_trailers_has_no_end(self):
        machine = exchange()
        head = RequestHeaders(headers=CHAT, modes=Modes(BodyMode.BUFFERED, DUPLEX))
        machine.receive(head, 0)
        (reply,) = machine.receive(body(chat_body(), end=False), 1)
        assert isinstance(reply, BodyReply)
        assert machine.receive(RequestTrailers(), 2) == [TrailersReply(response=False)]

    @pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL])
    def test_what_is_not_read_is_routed_at_the_headers(self, mode):
        # Envoy shows the body in one piece, if there is one at all before the trailers.
        message = RequestHeaders(
            headers={":method": "POST", ":path": "/v1/files"}, modes=Modes(mode, DUPLEX)
        )
        for pieces in ([], [body(b"x", end=False)]):
            machine = exchange(max_body_bytes=0)
            (reply,) = machine.receive(message, 0)
            assert isinstance(reply, HeadersReply)
            assert reply.mutation.destination == "10.0.0.1:8000"
            rest = play(machine, [*pieces, RequestTrailers()])
            assert rest == [BodyReply(response=False)] * len(pieces) + [TrailersReply(False)]

    @pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions", "/v1/realtime"])
    def test_a_websocket_is_routed_at_the_headers_and_its_frames_pass(self, path):
        # RFC 6455 §4.1: nothing follows until the server has agreed; it may also refuse.
        machine = exchange(max_body_bytes=1)
        asked = {":method": "GET", ":path": path, "connection": "Upgrade", "upgrade": "WebSocket"}
        (reply,) = machine.receive(RequestHeaders(headers=asked, modes=Modes(DUPLEX, DUPLEX)), 0)
        assert isinstance(reply, HeadersReply)
        assert reply.mutation.destination == "10.0.0.1:8000"
        agreed = ResponseHeaders(headers={":status": "101", "upgrade": "websocket"})
        frames = [body(b"{}", end=False), ResponseBody(body=b"[]"), body(b"{}")]
        passed = outcome(play(machine, [agreed, *frames]))
        assert (passed.request, passed.response) == (b"{}{}", b"[]")
        machine.receive(ResponseBody(body=b"", end_of_stream=True), 9)
        assert [record.outcome for record in machine.stub.closed] == [Outcome.COMPLETED]

    @pytest.mark.parametrize("more", [{"upgrade": "websocket"}, {":method": "GET"}])
    def test_what_is_no_websocket_is_read(self, more):
        machine = exchange()
        play(machine, [headers(**more), body(chat_body())])
        assert machine.stub.requests[0].model == "m"

    @pytest.mark.parametrize(
        ("status", "said"), [("101", Outcome.COMPLETED), ("200", Outcome.ABORTED)]
    )
    def test_a_reset_is_how_a_websocket_ends(self, status, said):
        # Envoy 1.40 shows neither the end of its request's body nor of its response's.
        machine = exchange()
        asked = {":method": "GET", ":path": "/v1/realtime", "upgrade": "websocket"}
        machine.receive(RequestHeaders(headers=asked, modes=Modes(DUPLEX, DUPLEX)), 0)
        agreed = ResponseHeaders(headers={":status": status})
        play(machine, [agreed, body(b"{}", end=False), ResponseBody(body=b"[]")])
        machine.cancelled(9)
        assert [record.outcome for record in machine.stub.closed] == [said]

    @pytest.mark.parametrize("mode", [DUPLEX, BodyMode.BUFFERED, BodyMode.STREAMED])
    def test_a_request_whose_headers_are_not_shown_is_refused_at_once(self, mode):
        modes = Modes(mode, mode)
        for message in (
            RequestBody(body=chat_body(), end_of_stream=True, modes=modes),
            RequestTrailers(modes=modes),
        ):
            machine = exchange()
            status, error, sent = error_of(machine.receive(message, 0))
            assert (status, sent["x-warmpick-reason"]) == (500, "headers-not-shown")
            assert "`request_header_mode` must be SEND" in error["message"]
            assert machine.wants() is Wants.END
            assert machine.stub.requests == []
            assert [record.outcome for record in machine.stub.closed] == [Outcome.REJECTED]

    def test_partial_body_that_was_cut_is_routed_by_load(self):
        machine = exchange()
        head = RequestHeaders(headers=CHAT, modes=Modes(BodyMode.BUFFERED_PARTIAL, DUPLEX))
        machine.receive(head, 0)
        (reply,) = machine.receive(body(chat_body()[:12], end=False), 1)
        assert isinstance(reply, BodyReply)
        assert machine.stub.requests[0].prompts == ()

    def test_partial_body_that_was_not_cut_is_refused_as_any_other(self):
        machine = exchange()
        head = RequestHeaders(headers=CHAT, modes=Modes(BodyMode.BUFFERED_PARTIAL, DUPLEX))
        machine.receive(head, 0)
        status, error, _ = error_of(machine.receive(body(chat_body()[:12]), 1))
        assert (status, error["message"].startswith("the body is not valid JSON")) == (400, True)

    @pytest.mark.parametrize("mode", [BodyMode.STREAMED, BodyMode.NONE])
    def test_unseen_bodies_are_routed_at_the_headers(self, mode):
        machine = exchange()
        (reply,) = machine.receive(RequestHeaders(headers=CHAT, modes=Modes(mode, mode)), 0)
        assert isinstance(reply, HeadersReply)
        assert reply.mutation.destination == "10.0.0.1:8000"
        assert machine.receive(body(b"{", end=False), 1) == [BodyReply(response=False)]
        assert machine.receive(body(b"}"), 2) == [BodyReply(response=False)]
        assert len(machine.stub.requests) == 1

    @pytest.mark.parametrize("mode", BodyMode)
    def test_it_is_told_of_bodies_that_would_be_read_and_are_not_shown(self, mode):
        told: list[BodyMode] = []
        for head, ends in ((CHAT, False), (CHAT | {":method": "GET"}, True)):
            message = RequestHeaders(headers=head, end_of_stream=ends, modes=Modes(mode, mode))
            exchange(on_unseen_body=told.append).receive(message, 0)
        unseen = mode in {BodyMode.NONE, BodyMode.STREAMED, BodyMode.GRPC}
        assert told == [mode] * unseen

    def test_response_without_body_mode_ends_with_the_stream(self):
        machine = exchange()
        modes = Modes(DUPLEX, BodyMode.NONE)
        play(machine, [RequestHeaders(headers=CHAT, modes=modes), body(chat_body())])
        machine.receive(ResponseHeaders(headers=OK), 3)
        machine.half_closed(4)
        assert machine.wants() is Wants.NEXT
        machine.half_closed(5)
        assert machine.stub.closed[0].outcome is Outcome.COMPLETED

    def test_streamed_response_is_acknowledged(self):
        machine = exchange()
        modes = Modes(DUPLEX, BodyMode.STREAMED)
        play(machine, [RequestHeaders(headers=CHAT, modes=modes), body(chat_body())])
        machine.receive(ResponseHeaders(headers=OK), 2)
        assert machine.receive(ResponseBody(body=SSE[0]), 3) == [BodyReply(response=True)]
