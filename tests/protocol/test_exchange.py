"""Rules of the exchange, one by one: what goes in, what must come out."""

import json

import pytest

from epp.errors import NoEndpoints, Overloaded
from epp.model.endpoint import Endpoint, Target
from epp.model.events import Aborted, Finished, FirstToken, OrcaReported, Served, Unobserved
from epp.model.request import Api, Decision, Outcome, Usage
from epp.protocol.director import Pending
from epp.protocol.exchange import Exchange
from epp.protocol.messages import (
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
from epp.protocol.told import decision_told
from tests.protocol.conversation import CHAT, OK, POD, Stub, chat_body, exchange, outcome, play

DUPLEX = BodyMode.FULL_DUPLEX_STREAMED
SSE = (
    b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n',
    (
        b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,'
        b'"prompt_tokens_details":{"cached_tokens":4}}}\n\ndata: [DONE]\n\n'
    ),
)


def body(data: bytes, end: bool = True) -> RequestBody:
    return RequestBody(body=data, end_of_stream=end)


def headers(**more) -> RequestHeaders:
    return RequestHeaders(headers=CHAT | more)


def error_of(replies) -> tuple[int, dict[str, str], dict[str, str]]:
    (reply,) = replies
    assert isinstance(reply, ImmediateReply)
    return reply.status, json.loads(reply.body)["error"], dict(reply.headers)


class TestFullDuplex:
    def test_headers_wait_for_the_body(self):
        stub = Stub()
        machine = exchange(stub)
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
        assert stub.requests[0].api is Api.CHAT
        assert machine.record.decided_at == 2

    def test_long_bodies_go_on_in_pieces_that_envoy_takes(self):
        data = chat_body(messages=[{"role": "user", "content": "x" * 200_000}])
        seen = outcome(play(exchange(Stub()), [headers(), body(data)]))
        assert seen.request == data
        assert seen.request_ended

    def test_body_that_is_an_exact_number_of_chunks_ends_once(self):
        data = b"x" * 124_000
        message = RequestHeaders(headers={":method": "POST", ":path": "/upload"})
        seen = outcome(play(exchange(Stub()), [message, body(data)]))
        assert (seen.request, seen.request_ended) == (data, True)

    def test_end_by_trailers(self):
        replies = play(
            exchange(Stub()), [headers(), body(chat_body(), end=False), RequestTrailers()]
        )
        assert [type(reply) for reply in replies] == [HeadersReply, Chunk, TrailersReply]
        assert replies[1] == Chunk(False, chat_body(), False)

    def test_second_end_of_stream_is_ignored(self):
        stub = Stub()
        machine = exchange(stub)
        play(machine, [headers(), body(chat_body())])
        assert machine.receive(body(b""), 9) == []
        assert machine.receive(body(b"more"), 9) == []
        assert len(stub.requests) == 1

    def test_response_passes_byte_for_byte(self):
        messages: list[Message] = [ResponseHeaders(headers=OK)]
        messages += [ResponseBody(body=chunk) for chunk in SSE]
        messages += [ResponseBody(body=b"", end_of_stream=True)]
        stub = Stub()
        machine = exchange(stub)
        seen = outcome(play(machine, [headers(), body(chat_body()), *messages]))
        assert seen.response == b"".join(SSE)
        assert seen.response_ended
        assert seen.order == [
            "request HeadersReply",
            "request Chunk",
            "response HeadersReply",
            "response Chunk",
        ]
        assert stub.events == [
            FirstToken(machine.record.id),
            Finished(machine.record.id, Usage(9, 2, 4), 2),
        ]
        (record,) = stub.closed
        assert record.outcome is Outcome.COMPLETED
        assert record.usage == Usage(9, 2, 4)
        assert (record.status, record.streaming, record.response_chunks) == (200, True, 2)
        assert record.first_byte_at == 3

    def test_response_trailers_end_the_exchange(self):
        stub = Stub()
        machine = exchange(stub)
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
        assert machine.over
        assert stub.kinds == ["FirstToken", "Finished"]

    def test_unknown_path_passes_through_by_load_alone(self):
        stub = Stub()
        machine = exchange(stub, max_body_bytes=4)
        head = RequestHeaders(headers={":method": "POST", ":path": "/tokenize"})
        assert [type(each) for each in machine.receive(head, 0)] == [HeadersReply]
        assert machine.receive(body(b"not json", end=False), 1) == [
            Chunk(False, b"not json", False)
        ]
        assert machine.receive(body(b"!"), 2) == [Chunk(False, b"!", True)]
        assert stub.requests[0].api is Api.OTHER
        assert stub.requests[0].prompts == ()


class TestHeadersOnly:
    @pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/", ""])
    def test_get_is_routed(self, path):
        stub = Stub()
        message = RequestHeaders(headers={":method": "GET", ":path": path}, end_of_stream=True)
        (reply,) = exchange(stub).receive(message, 0)
        assert isinstance(reply, HeadersReply)
        assert reply.mutation.destination == "10.0.0.1:8000"

    def test_subset_counts_for_a_get(self):
        stub = Stub()
        message = RequestHeaders(
            headers={":method": "GET", ":path": "/x"}, end_of_stream=True, subset=("10.0.0.9",)
        )
        exchange(stub).receive(message, 0)
        assert stub.requests[0].subset == ("10.0.0.9",)

    def test_post_without_a_body_is_refused(self):
        message = RequestHeaders(headers=CHAT, end_of_stream=True)
        status, error, sent = error_of(exchange(Stub()).receive(message, 0))
        assert (status, error["code"], sent["x-warmpick-reason"]) == (
            400,
            "empty-body",
            "empty-body",
        )


class TestOtherModes:
    def test_buffered_answers_headers_at_once_and_routes_with_the_body(self):
        machine = exchange(Stub())
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
        machine = exchange(Stub())
        head = RequestHeaders(headers=CHAT, modes=Modes(BodyMode.BUFFERED, DUPLEX))
        machine.receive(head, 0)
        (reply,) = machine.receive(body(chat_body(), end=False), 1)
        assert isinstance(reply, BodyReply)
        assert machine.receive(RequestTrailers(), 2) == [TrailersReply(response=False)]

    def test_partial_body_that_was_cut_is_routed_by_load(self):
        stub = Stub()
        machine = exchange(stub)
        head = RequestHeaders(headers=CHAT, modes=Modes(BodyMode.BUFFERED_PARTIAL, DUPLEX))
        machine.receive(head, 0)
        (reply,) = machine.receive(body(chat_body()[:12], end=False), 1)
        assert isinstance(reply, BodyReply)
        assert stub.requests[0].prompts == ()

    @pytest.mark.parametrize("mode", [BodyMode.STREAMED, BodyMode.NONE])
    def test_unseen_bodies_are_routed_at_the_headers(self, mode):
        stub = Stub()
        machine = exchange(stub)
        (reply,) = machine.receive(RequestHeaders(headers=CHAT, modes=Modes(mode, mode)), 0)
        assert isinstance(reply, HeadersReply)
        assert reply.mutation.destination == "10.0.0.1:8000"
        assert machine.receive(body(b"{", end=False), 1) == [BodyReply(response=False)]
        assert machine.receive(body(b"}"), 2) == [BodyReply(response=False)]
        assert len(stub.requests) == 1

    def test_response_without_body_mode_ends_with_the_stream(self):
        stub = Stub()
        machine = exchange(stub)
        modes = Modes(DUPLEX, BodyMode.NONE)
        play(machine, [RequestHeaders(headers=CHAT, modes=modes), body(chat_body())])
        machine.receive(ResponseHeaders(headers=OK), 3)
        machine.half_closed(4)
        assert stub.closed[0].outcome is Outcome.COMPLETED

    def test_streamed_response_is_acknowledged(self):
        machine = exchange(Stub())
        modes = Modes(DUPLEX, BodyMode.STREAMED)
        play(machine, [RequestHeaders(headers=CHAT, modes=modes), body(chat_body())])
        machine.receive(ResponseHeaders(headers=OK), 2)
        assert machine.receive(ResponseBody(body=SSE[0]), 3) == [BodyReply(response=True)]


class TestEnds:
    def routed(self, stub: Stub) -> Exchange:
        machine = exchange(stub)
        play(machine, [headers(), body(chat_body())])
        return machine

    def test_half_close_after_the_request(self):
        stub = Stub()
        machine = self.routed(stub)
        machine.half_closed(5)
        assert machine.over
        assert stub.events == [Unobserved(machine.record.id)]
        assert stub.closed[0].outcome is Outcome.UNOBSERVED

    def test_half_close_before_anything(self):
        stub = Stub()
        machine = exchange(stub)
        machine.half_closed(0)
        assert stub.events == []
        assert stub.closed[0].outcome is Outcome.ABORTED

    @pytest.mark.parametrize("point", range(6))
    def test_disconnect_at_every_point_settles_once(self, point):
        stub = Stub()
        machine = exchange(stub)
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
        assert len(stub.closed) == 1
        assert stub.closed[0].outcome is Outcome.ABORTED
        assert stub.closed[0].finished_at == 9
        routed = point >= 3
        assert [type(event) for event in stub.events if not isinstance(event, FirstToken)] == (
            [Aborted] if routed else []
        )
        assert machine.receive(ResponseBody(body=b"late"), 12) == []

    def test_tokens_streamed_before_a_disconnect_are_counted(self):
        stub = Stub()
        machine = self.routed(stub)
        machine.receive(ResponseHeaders(headers=OK), 2)
        machine.receive(ResponseBody(body=SSE[0]), 3)
        machine.cancelled(4)
        assert stub.events[-1] == Aborted(machine.record.id, 1)

    @pytest.mark.parametrize("status", ["400", "503"])
    def test_error_status_means_that_nothing_was_computed(self, status):
        stub = Stub()
        machine = self.routed(stub)
        machine.receive(ResponseHeaders(headers={":status": status}, end_of_stream=True), 3)
        assert stub.events == [Aborted(machine.record.id, refused=True)]
        assert stub.closed[0].status == int(status)

    def test_answer_of_the_proxys_own_before_any_decision_is_no_completion(self):
        stub = Stub()
        machine = exchange(stub)
        machine.receive(headers(), 0)
        machine.receive(ResponseHeaders(headers={":status": "408"}, end_of_stream=True), 9)
        assert stub.closed[0].outcome is Outcome.ABORTED

    @pytest.mark.parametrize("modes", [None, Modes()])
    def test_a_proxy_that_announces_its_modes_says_so(self, modes):
        machine = exchange(Stub())
        machine.receive(RequestHeaders(headers=CHAT, modes=modes), 0)
        assert machine.announced is (modes is not None)

    def test_response_only_stream_passes(self):
        stub = Stub()
        seen = outcome(
            play(
                exchange(stub),
                [
                    ResponseHeaders(headers=OK, served=Target("1.2.3.4:5")),
                    ResponseBody(body=b"x", end_of_stream=True),
                ],
            )
        )
        assert (seen.response, seen.response_ended) == (b"x", True)
        assert stub.events == []

    def test_served_elsewhere_is_told_once(self):
        stub = Stub()
        machine = self.routed(stub)
        served = Target("10.0.0.2:8000")
        machine.receive(ResponseHeaders(headers=OK, served=served), 3)
        machine.receive(ResponseBody(body=b"x", served=served), 4)
        assert stub.events[0] == Served(machine.record.id, served)
        assert [type(event) for event in stub.events].count(Served) == 1


class TestErrors:
    @pytest.mark.parametrize(
        ("data", "reason", "says"),
        [
            pytest.param(b"", "malformed-request", "empty", id="empty"),
            pytest.param(b"{", "malformed-request", "not valid JSON", id="truncated"),
            pytest.param(b'{"model":"m"', "malformed-request", "not valid JSON", id="unclosed"),
            pytest.param(b"[1]", "malformed-request", "Expected `object`", id="not an object"),
            pytest.param(b'{"model":5}', "malformed-request", "$.model", id="model a number"),
            pytest.param(
                b'{"model":"m","messages":"x"}', "malformed-request", "$.messages", id="messages"
            ),
            pytest.param(b'{"model":"m"}', "missing-prompt", "`messages`", id="no messages"),
            pytest.param(
                b'{"messages":[{"role":"user","content":"x"}]}',
                "missing-model",
                "`model`",
                id="no model",
            ),
            pytest.param(b'{"model":"\xff"}', "malformed-request", "utf-8", id="not UTF-8"),
            pytest.param(
                b'{"model":"m","x":' + b"[" * 99_999, "nested-too-deeply", "deep", id="deep"
            ),
        ],
    )
    def test_bad_bodies(self, data, reason, says):
        stub = Stub()
        machine = exchange(stub)
        machine.receive(headers(), 0)
        status, error, sent = error_of(machine.receive(body(data), 1))
        assert status == 400
        assert error["code"] == sent["x-warmpick-reason"] == reason
        assert error["type"] == "invalid_request_error"
        assert says in error["message"]
        assert sent["content-type"] == "application/json"
        assert machine.over
        assert stub.requests == []
        assert stub.closed[0].outcome is Outcome.REJECTED

    def test_numbers_that_python_cannot_hold_are_the_servers_business(self):
        stub = Stub()
        data = chat_body()[:-1] + b', "temperature": 1e400}'
        assert outcome(play(exchange(stub), [headers(), body(data)])).request == data

    def test_body_over_the_limit(self):
        machine = exchange(Stub(), max_body_bytes=10)
        machine.receive(headers(), 0)
        assert machine.receive(body(b"x" * 10, end=False), 1) == []
        status, error, _ = error_of(machine.receive(body(b"x", end=False), 2))
        assert status == 413
        assert "10 bytes" in error["message"]

    def test_no_endpoints(self):
        stub = Stub(NoEndpoints("nobody", retry_after=1))
        machine = exchange(stub)
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
            machine = exchange(Stub())
            machine.receive(first, 0)
            machine.receive(first, 1)
            machine.cancelled(2)
            assert machine.over


class TestHeaders:
    def test_control_headers_are_removed_and_others_left_alone(self):
        sent = {
            "x-gateway-inference-objective": "gold",
            "x-gateway-inference-fairness-id": "tenant",
            "x-prefiller-host-port": "evil:1",
            "authorization": "Bearer x",
        }
        stub = Stub()
        seen = outcome(play(exchange(stub), [headers(**sent), body(chat_body())]))
        assert set(seen.removed) == set(sent) - {"authorization"}
        assert (stub.requests[0].objective, stub.requests[0].fairness_id) == ("gold", "tenant")

    def test_newer_header_names_win(self):
        sent = {
            "x-llm-d-inference-objective": "new",
            "x-gateway-inference-objective": "old",
        }
        stub = Stub()
        play(exchange(stub), [headers(**sent), body(chat_body())])
        assert stub.requests[0].objective == "new"

    def test_own_request_id_where_the_client_has_none(self):
        head = RequestHeaders(headers={":method": "POST", ":path": "/v1/chat/completions"})
        seen = outcome(play(exchange(Stub()), [head, body(chat_body())]))
        assert seen.set_headers["x-request-id"] == "own-id"

    def test_several_endpoints_and_ipv6(self):
        pods = (Endpoint("d", "a", "fd00::1", 8000), POD)
        stub = Stub(Decision(endpoints=pods))
        seen = outcome(play(exchange(stub), [headers(), body(chat_body())]))
        assert seen.destination == "[fd00::1]:8000,10.0.0.1:8000"
        assert seen.set_headers["x-gateway-destination-endpoint"] == seen.destination

    def test_original_path_names_the_api(self):
        stub = Stub()
        rewritten = headers(**{":path": "/internal", "x-original-path": "/v1/chat/completions"})
        play(exchange(stub), [rewritten, body(chat_body())])
        assert stub.requests[0].api is Api.CHAT

    def test_decision_is_shown_on_request(self):
        decision = Decision(
            endpoints=(POD,), prompt_tokens=9, predicted_cached_tokens=4, predicted_ttft=0.0125
        )
        machine = exchange(Stub(decision), tells=(decision_told,))
        play(machine, [headers(), body(chat_body())])
        seen = outcome(machine.receive(ResponseHeaders(headers=OK), 2))
        assert json.loads(seen.response_headers["x-warmpick-decision"]) == {
            "endpoint": "10.0.0.1:8000",
            "prompt_tokens": 9,
            "predicted_cached_tokens": 4,
            "predicted_ttft_ms": 12.5,
        }

    def test_orca_is_asked_for_and_heard(self):
        stub = Stub()
        machine = exchange(stub, request_orca=True)
        seen = outcome(play(machine, [headers(), body(chat_body())]))
        assert seen.set_headers["endpoint-load-metrics-format"] == "JSON"
        report = 'JSON {"named_metrics": {"num_requests_waiting": 3, "kv_cache_usage_perc": 0.5}}'
        machine.receive(ResponseHeaders(headers=OK | {"endpoint-load-metrics": report}), 2)
        (event,) = stub.events
        assert isinstance(event, OrcaReported)
        assert (event.target, event.waiting, event.kv_usage) == ("10.0.0.1:8000", 3, 0.5)

    @pytest.mark.parametrize("report", ["", "JSON {", "TEXT", "BIN x", "nonsense"])
    def test_broken_orca_is_ignored(self, report):
        stub = Stub()
        machine = exchange(stub)
        play(machine, [headers(), body(chat_body())])
        machine.receive(ResponseHeaders(headers=OK | {"endpoint-load-metrics": report}), 2)
        assert stub.events == []


class TestRewrite:
    rewrite = {"x-gateway-model-name-rewrite": "target"}

    def test_only_the_name_changes_upstream(self):
        data = b'{ "messages": [{"role":"user","content":"\\"model\\": x"}],  "model" : "m"}'
        stub = Stub()
        seen = outcome(play(exchange(stub), [headers(**self.rewrite), body(data)]))
        assert seen.request == data.replace(b': "m"', b': "target"')
        assert seen.set_headers["content-length"] == str(len(seen.request))
        assert (stub.requests[0].model, stub.requests[0].target_model) == ("m", "target")

    def test_buffered_body_is_replaced(self):
        machine = exchange(Stub())
        modes = Modes(BodyMode.BUFFERED, BodyMode.BUFFERED)
        machine.receive(RequestHeaders(headers=CHAT | self.rewrite, modes=modes), 0)
        (reply,) = machine.receive(body(chat_body()), 1)
        assert isinstance(reply, BodyReply)
        assert json.loads(reply.mutation.body or b"")["model"] == "target"
        machine.receive(ResponseHeaders(headers={":status": "200"}), 2)
        (reply,) = machine.receive(ResponseBody(body=b'{"model":"target"}'), 3)
        assert isinstance(reply, BodyReply)
        assert reply.mutation.body == b'{"model":"m"}'

    def test_client_reads_its_own_name(self):
        machine = exchange(Stub())
        play(machine, [headers(**self.rewrite), body(chat_body())])
        (head,) = machine.receive(ResponseHeaders(headers=OK | {"content-length": "9"}), 2)
        assert isinstance(head, HeadersReply)
        assert head.mutation.remove_headers == ("content-length",)
        data = (
            b'data: {"model":"target","choices":[{"delta":{"content":"\\"model\\":\\"target\\""}}]}'
            b"\n\ndata: [DONE]\n\n"
        )
        got = outcome(
            play(machine, [ResponseBody(body=data), ResponseBody(body=b"", end_of_stream=True)])
        )
        assert got.response == data.replace(b'{"model":"target"', b'{"model":"m"')
        assert got.response_ended

    def test_compressed_responses_are_left_alone(self):
        machine = exchange(Stub())
        play(machine, [headers(**self.rewrite), body(chat_body())])
        machine.receive(ResponseHeaders(headers=OK | {"content-encoding": "gzip"}), 2)
        data = b'{"model":"target"}'
        (reply,) = machine.receive(ResponseBody(body=data, end_of_stream=True), 3)
        assert reply == Chunk(True, data, True)


class TestPending:
    def waiting(self) -> tuple[Stub, Exchange]:
        stub = Stub(Pending.PENDING)
        machine = exchange(stub)
        assert play(machine, [headers(), body(chat_body())]) == []
        assert machine.pending
        return stub, machine

    def test_resumes_where_it_stopped(self):
        _, machine = self.waiting()
        seen = outcome(machine.resume(Decision(endpoints=(POD,)), 5))
        assert (seen.request, seen.destination) == (chat_body(), "10.0.0.1:8000")
        assert machine.record.decided_at == 5

    def test_ends_with_an_error(self):
        stub, machine = self.waiting()
        status, _, sent = error_of(machine.resume(Overloaded("full", retry_after=3), 5))
        assert (status, sent["retry-after"]) == (429, "3")
        assert stub.closed[0].outcome is Outcome.REJECTED

    def test_decision_for_a_client_that_left_is_undone(self):
        stub, machine = self.waiting()
        machine.cancelled(4)
        assert machine.resume(Decision(endpoints=(POD,)), 5) == []
        assert stub.events == [Aborted(machine.record.id, refused=True)]

    def test_half_close_waits_for_the_decision(self):
        stub, machine = self.waiting()
        machine.half_closed(4)
        assert machine.pending
        assert outcome(machine.resume(Decision(endpoints=(POD,)), 5)).request == chat_body()
        assert machine.over
        assert stub.closed[0].outcome is Outcome.UNOBSERVED

    def test_what_passes_meanwhile_is_kept(self):
        stub = Stub(Pending.PENDING)
        machine = exchange(stub)
        head = RequestHeaders(headers={":method": "POST", ":path": "/tokenize"})
        play(machine, [head, body(b"ab", end=False), body(b"cd", end=False), RequestTrailers()])
        replies = machine.resume(Decision(endpoints=(POD,)), 5)
        assert replies[1:] == [Chunk(False, b"abcd", False), TrailersReply(response=False)]

    def test_what_passes_meanwhile_has_a_limit(self):
        stub = Stub(Pending.PENDING)
        machine = exchange(stub, max_body_bytes=3)
        head = RequestHeaders(headers={":method": "POST", ":path": "/tokenize"})
        replies = play(machine, [head, body(b"ab", end=False), body(b"cd", end=False)])
        assert error_of(replies)[0] == 413
