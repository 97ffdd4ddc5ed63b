"""Headers and model names, as the exchange reads, sets and rewrites them."""

import json

import pytest

from epp.errors import WaitedTooLong
from epp.model.decision import Decision
from epp.model.endpoint import Endpoint, Target
from epp.model.events import OrcaReported
from epp.model.request import Api
from epp.protocol.extproc.debug_headers import decision_header, queue_duration_header
from epp.protocol.extproc.director import PendingDecision
from epp.protocol.extproc.errors import error_reply
from epp.protocol.extproc.messages import (
    BodyMode,
    BodyReply,
    Chunk,
    HeadersReply,
    Modes,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    TrailersReply,
)
from epp.protocol.routing_table import RoutingTable, WeightedTargets
from tests.protocol.extproc.conversation import (
    CHAT,
    OK,
    POD,
    Stub,
    body,
    chat_body,
    exchange,
    headers,
    outcome,
    play,
    request_of,
)
from tests.strategies import candidate

QUEUED = "x-llm-d-flow-queue-duration-ms"


class TestQueueDuration:
    """The header that says for how long a request waited in the picker."""

    def shown(self, waited, **settings):
        machine = exchange(Stub(PendingDecision()), **settings)
        play(machine, [headers(), body(chat_body())])
        machine.resume(Decision(endpoints=(POD,), waited=waited), 5)
        seen = outcome(play(machine, [ResponseHeaders(headers=OK)]))
        return seen.response_headers.get(QUEUED)

    @pytest.mark.parametrize(("waited", "said"), [(0.2519, "251"), (0.0, "0"), (None, None)])
    def test_a_response_says_for_how_long_its_request_waited(self, waited, said):
        assert self.shown(waited) == said

    def test_it_is_there_once_where_every_response_has_it(self):
        every = {"header_sources": (queue_duration_header,)}
        assert self.shown(1.5, **every) == "1500"
        assert self.shown(None, **every) == "0"

    @pytest.mark.parametrize(("waited", "said"), [(61.0, "61000"), (0.0, "0"), (None, None)])
    def test_a_refusal_says_it_too(self, waited, said):
        error = WaitedTooLong("too long", retry_after=3)
        error.waited = waited
        found = dict(error_reply(error).headers)
        assert found.get(QUEUED) == said
        assert found["x-llm-d-request-dropped-reason"] == "rejected-ttl-expired"


class TestHeaders:
    def test_control_headers_are_removed_and_no_others(self):
        sent = {
            "x-gateway-inference-objective": "gold",
            "x-gateway-inference-fairness-id": "tenant",
            "x-prefiller-host-port": "evil:1",
            "authorization": "Bearer x",
        }
        machine = exchange()
        seen = outcome(play(machine, [headers(**sent), body(chat_body())]))
        assert set(seen.removed) == set(sent) - {"authorization"}
        (request,) = machine.stub.requests
        assert (request.objective, request.fairness_id) == ("gold", "tenant")

    def test_newer_header_names_win(self):
        sent = {
            "x-llm-d-inference-objective": "new",
            "x-gateway-inference-objective": "old",
        }
        assert request_of(headers(**sent), body(chat_body())).objective == "new"

    def test_own_request_id_where_the_client_has_none(self):
        head = RequestHeaders(headers={":method": "POST", ":path": "/v1/chat/completions"})
        seen = outcome(play(exchange(), [head, body(chat_body())]))
        assert seen.set_headers["x-request-id"] == "own-id"

    def test_several_endpoints_and_ipv6(self):
        pods = (Endpoint("d", "a", "fd00::1", 8000), POD)
        machine = exchange(Stub(Decision(endpoints=pods)))
        seen = outcome(play(machine, [headers(), body(chat_body())]))
        assert seen.destination == "[fd00::1]:8000,10.0.0.1:8000"
        assert seen.set_headers["x-gateway-destination-endpoint"] == seen.destination

    def test_original_path_names_the_api(self):
        rewritten = headers(**{":path": "/internal", "x-original-path": "/v1/chat/completions"})
        assert request_of(rewritten, body(chat_body())).api is Api.CHAT

    def test_decision_is_shown_on_request(self):
        decision = Decision(
            endpoints=(POD,), prompt_tokens=9, predicted_cached_tokens=4, predicted_ttft=0.0125
        )
        machine = exchange(Stub(decision), header_sources=(decision_header,))
        play(machine, [headers(), body(chat_body())])
        seen = outcome(machine.receive(ResponseHeaders(headers=OK), 2))
        assert json.loads(seen.response_headers["x-warmpick-decision"]) == {
            "endpoint": "10.0.0.1:8000",
            "prompt_tokens": 9,
            "predicted_cached_tokens": 4,
            "predicted_ttft_ms": 12.5,
        }

    def test_a_decision_is_shown_with_the_terms_of_its_cost(self):
        picked = candidate(
            queued_prefill_seconds=0.5,
            prefill_seconds=0.04,
            class_prefill_seconds=0.02,
            decode_seconds=0.0000625,
            generation_seconds=2.5,
            crowding_seconds=1.25,
            slot_seconds=0.125,
            busy_share=0.3333333,
            ttft_share=0.00012345,
        )
        decision = Decision(endpoints=(POD,), predicted_for=picked)
        machine = exchange(Stub(decision), header_sources=(decision_header,))
        play(machine, [headers(), body(chat_body())])
        seen = outcome(machine.receive(ResponseHeaders(headers=OK), 2))
        assert json.loads(seen.response_headers["x-warmpick-decision"])["cost"] == {
            "queued_prefill_ms": 500,
            "prefill_ms": 40,
            "class_prefill_ms": 20,
            "decode_ms": 0.062,
            "generation_ms": 2500,
            "crowding_ms": 1250,
            "slot_ms": 125,
            "busy_share": 0.333,
            "ttft_share": 0.000123,
        }

    @pytest.mark.parametrize("served", [None, Target("10.0.0.2:8000")])
    def test_orca_is_requested_and_reported(self, served):
        machine = exchange(request_orca=True)
        seen = outcome(play(machine, [headers(), body(chat_body())]))
        assert seen.set_headers["endpoint-load-metrics-format"] == "JSON"
        report = 'JSON {"named_metrics": {"num_requests_waiting": 3, "kv_cache_usage_perc": 0.5}}'
        told = OK | {"endpoint-load-metrics": report}
        machine.receive(ResponseHeaders(headers=told, served=served), 2)
        event = machine.stub.events[-1]
        assert isinstance(event, OrcaReported)
        assert event.target == (served or "10.0.0.1:8000")
        assert (event.waiting, event.kv_usage) == (3, 0.5)

    @pytest.mark.parametrize("report", ["", "JSON {", "TEXT", "BIN x", "nonsense"])
    def test_broken_orca_is_ignored(self, report):
        machine = exchange()
        play(machine, [headers(), body(chat_body())])
        machine.receive(ResponseHeaders(headers=OK | {"endpoint-load-metrics": report}), 2)
        assert machine.stub.events == []


class TestRewrite:
    rewrite = {"x-gateway-model-name-rewrite": "target"}

    def test_only_the_name_changes_upstream(self):
        data = b'{ "messages": [{"role":"user","content":"\\"model\\": x"}],  "model" : "m"}'
        machine = exchange()
        seen = outcome(play(machine, [headers(**self.rewrite), body(data)]))
        assert seen.request == data.replace(b': "m"', b': "target"')
        assert seen.set_headers["content-length"] == str(len(seen.request))
        (request,) = machine.stub.requests
        assert (request.model, request.target_model) == ("m", "target")

    @pytest.mark.parametrize(
        ("data", "wanted"),
        [
            (b'{"messages":[{}]}', b'{"messages":[{}],"model":"target"}'),
            (b'{"model":"","messages":[{}]}', b'{"model":"target","messages":[{}]}'),
            (b'{"model": null,"messages":[{}]}', b'{"model": "target","messages":[{}]}'),
        ],
    )
    @pytest.mark.parametrize(
        ("more", "other"),
        [(rewrite, None), ({}, "target"), ({"x-gateway-model-name-rewrite": "x"}, "target")],
    )
    def test_a_body_without_a_model_gets_one(self, data, wanted, more, other):
        targets = WeightedTargets.of([(other, 1)], "of-all") if other else None
        rules = RoutingTable(other=targets)
        machine = exchange(resolve=lambda request: rules.resolve(request, lambda _: 0))
        seen = outcome(play(machine, [headers(**more), body(data)]))
        assert seen.request == wanted
        assert seen.set_headers["content-length"] == str(len(wanted))
        (request,) = machine.stub.requests
        assert (request.model, request.target_model) == ("", "target")

    @pytest.mark.parametrize("path", ["/v1/chat/completions", "/other"])
    def test_a_body_that_is_not_read_keeps_its_model(self, path):
        rules = RoutingTable(
            priorities={"urgent": 3}, other=WeightedTargets.of([("target", 1)], "of-all")
        )
        machine = exchange(resolve=lambda request: rules.resolve(request, lambda _: 0))
        head = CHAT | self.rewrite | {":path": path, "x-gateway-inference-objective": "urgent"}
        machine.receive(RequestHeaders(headers=head, modes=Modes(BodyMode.NONE)), 0)
        (request,) = machine.stub.requests
        assert (request.target_model, request.rewrite, request.priority) == ("", "", 3)

    def test_buffered_body_is_replaced(self):
        machine = exchange()
        modes = Modes(BodyMode.BUFFERED, BodyMode.BUFFERED)
        machine.receive(RequestHeaders(headers=CHAT | self.rewrite, modes=modes), 0)
        (reply,) = machine.receive(body(chat_body()), 1)
        assert isinstance(reply, BodyReply)
        assert json.loads(reply.mutation.body or b"")["model"] == "target"
        machine.receive(ResponseHeaders(headers={":status": "200"}), 2)
        (reply,) = machine.receive(ResponseBody(body=b'{"model":"target"}'), 3)
        assert isinstance(reply, BodyReply)
        assert reply.mutation.body == b'{"model":"m"}'
        assert machine.receive(ResponseTrailers(), 4) == [TrailersReply(response=True)]

    def test_client_reads_its_own_name(self):
        machine = exchange()
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

    def test_a_response_without_a_body_keeps_its_length(self):
        machine = exchange()
        play(machine, [headers(**self.rewrite), body(chat_body())])
        bare = ResponseHeaders(headers=OK | {"content-length": "9"}, end_of_stream=True)
        assert machine.receive(bare, 2) == [HeadersReply(response=True)]

    def test_compressed_responses_pass_unchanged(self):
        machine = exchange()
        play(machine, [headers(**self.rewrite), body(chat_body())])
        machine.receive(ResponseHeaders(headers=OK | {"content-encoding": "gzip"}), 2)
        data = b'{"model":"target"}'
        (reply,) = machine.receive(ResponseBody(body=data, end_of_stream=True), 3)
        assert reply == Chunk(True, data, True)
