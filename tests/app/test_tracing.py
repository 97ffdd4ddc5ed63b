"""Traces of requests, as a collector gets them: OTLP's own messages, over its own transports."""

import asyncio
import random
import time

import aiohttp
import grpc
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from structlog.testing import capture_logs

from epp.adapters.tracing.exporting import SpanExport
from epp.adapters.tracing.settings import TracingSettings
from epp.app.observing import tracing
from epp.app.observing.tracing import Tracing, tracing_or_none
from epp.config.file import load
from epp.errors import ConfigError
from epp.policy.explanations.ranking import measures
from epp.protocol.trace_context import TraceSampling, parse
from tests.adapters.ext_proc_peer import Peer, body, head, response_body, response_head
from tests.adapters.tracing.collector import attributes, collecting_grpc, collecting_http
from tests.adapters.vllm_page import vllm_page
from tests.app.watched import DISAGGREGATED, Watched
from tests.processes import forked_picker, said

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"
SECRET_TEXT = "the-prompt-nobody-may-see " * 40
LINEAR_SPANS = [
    "gateway.request",
    "gateway.request_orchestration",
    "run_scheduler_profile",
    "filter_endpoints",
    "scoring",
    "pick_endpoints",
]


class Traced(Watched):
    """A picker that traces; started and stopped as a picker does."""

    def __init__(self, policy="least-ttft", ratio=1.0, *, parent_based=True, pods=3, **more):
        super().__init__(policy, pods)
        given = {
            "service_name": "epp",
            "sampling": TraceSampling(ratio, parent_based),
            "delay": 0.01,
            "pool": "chat",
            **more,
        }
        settings = TracingSettings(**given)
        scheduling = self.settings.scheduling
        types = {name: kind for kind, name in scheduling.plugin_names.values()}
        self.export = SpanExport(settings, self.clock, measures(scheduling.profiles), types)
        chance = random.Random(1)  # noqa: S311 (a test's)
        self.tracing = Tracing(settings, self.export, self.clock, chance)
        self.begin_span = self.tracing.begin
        self.observe(self.tracing.observer)

    def outcomes(self):
        return dict(self.export.counts)


@pytest.fixture(params=[("grpc", collecting_grpc), ("http/protobuf", collecting_http)], ids="GH")
def collector(request, monkeypatch):
    protocol, collecting = request.param
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        collector.protocol = protocol
        yield collector


@pytest.fixture
def grpc_collector(monkeypatch):
    with collecting_grpc() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        yield collector


def exported(traced, collector, count):
    """Stop, and give the spans by name."""
    traced.export.start()
    spans = collector.spans(count)
    traced.export.stop()
    return {each.name: each for each in spans}


def test_a_request_has_llm_d_routers_spans_over_either_protocol(collector):
    traced = Traced("linear", exporter=collector.protocol)
    record = traced.serve(cached=16, **{"x-request-id": "asked-1"})
    spans = exported(traced, collector, 9)
    scorers = [name for name in spans if name.startswith("llm_d.epp.scorer.")]
    assert [*spans] == [*LINEAR_SPANS[:5], *scorers, LINEAR_SPANS[5]]
    assert len(scorers) == len(record.decision.scores) == 3
    resource = collector.resource()
    assert (resource["service.name"], resource["warmpick.pool"]) == ("epp", "chat")
    assert len({each.trace_id for each in spans.values()}) == 1
    assert len({each.span_id for each in spans.values()}) == len(spans)
    for child, parent in [
        ("gateway.request_orchestration", "gateway.request"),
        ("run_scheduler_profile", "gateway.request_orchestration"),
        ("filter_endpoints", "run_scheduler_profile"),
        ("scoring", "run_scheduler_profile"),
        ("pick_endpoints", "run_scheduler_profile"),
        *((scorer, "scoring") for scorer in scorers),
    ]:
        assert spans[child].parent_span_id == spans[parent].span_id, child


def test_the_environment_names_the_service(grpc_collector, monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=mine")
    traced = Traced(service_name="")
    traced.serve()
    exported(traced, grpc_collector, 5)
    assert grpc_collector.resource()["service.name"] == "mine"


@pytest.fixture
def told(grpc_collector):
    """The record and the spans of a request whose prompt is cached in part."""
    traced = Traced("linear")
    traced.serve()
    record = traced.serve(cached=480, **{"x-request-id": "asked-1"})
    return record, exported(traced, grpc_collector, 18)


def test_the_first_span_tells_how_a_request_went(told):
    record, spans = told
    shared = {
        "gen_ai.request.model": "m",
        "gen_ai.request.id": "asked-1",
        "llm_d.epp.fairness.id": "default-flow",
        "llm_d.epp.fairness.source": "default",
    }
    found = attributes(spans["gateway.request"])
    assert found.items() >= shared.items()
    decision = record.decision
    assert found["warmpick.request.id"] == record.id
    assert found["warmpick.outcome"] == "completed"
    assert found["http.response.status_code"] == 200
    assert found["warmpick.endpoint"] == decision.endpoint.id
    assert found["warmpick.cached_tokens.predicted"] == decision.predicted_cached_tokens > 0
    assert found["warmpick.cached_tokens"] == 480
    assert found["gen_ai.usage.output_tokens"] == 9
    assert found["warmpick.ttft_ms"] == pytest.approx(200)
    root = spans["gateway.request"]
    assert root.end_time_unix_nano - root.start_time_unix_nano == pytest.approx(3e8, rel=1e-3)
    assert [each.name for each in root.events] == ["first_byte"]
    assert not root.parent_span_id
    assert 0 <= time.time() - root.end_time_unix_nano / 1e9 < 60  # it is the last of its times


def test_the_address_is_that_of_the_endpoint_that_served(grpc_collector):
    traced = Traced()
    exchange, _ = traced.ask()
    picked = exchange.record.decision.endpoint
    other = next(each for each in traced.fleet.endpoints if each.id != picked.id)
    traced.answer(exchange, served=other.target)
    found = attributes(exported(traced, grpc_collector, 5)["gateway.request"])
    assert (found["warmpick.endpoint"], found["server.address"]) == (picked.id, other.target)


def test_the_spans_of_a_decision_have_the_attributes_of_the_contract(told):
    record, spans = told
    decision = record.decision
    assert (
        attributes(spans["gateway.request_orchestration"]).items()
        >= {
            "target_model": "m",
            "request_prio": 0,
        }.items()
    )
    profile = attributes(spans["run_scheduler_profile"])
    assert profile["llm_d.epp.scheduling.profile.name"] == decision.profile
    assert "gen_ai.request.id" not in profile
    filtered = attributes(spans["filter_endpoints"])
    assert filtered["llm_d.epp.filter.candidate_endpoints"] == 3
    assert filtered["llm_d.epp.filter.filtered_endpoints"] == 3
    scoring = attributes(spans["scoring"])
    assert scoring["llm_d.epp.scorer.count"] == 3
    assert scoring["llm_d.epp.scoring.candidate_endpoints"] == 3
    picked = attributes(spans["pick_endpoints"])
    assert picked["llm_d.epp.picker.candidate_endpoints"] == 3
    assert picked["llm_d.epp.picker.top_endpoints"][0] == decision.endpoint.id
    assert picked["llm_d.epp.picker.top_scores"] == sorted(decision.totals, reverse=True)
    assert picked["warmpick.picker.top_cached_tokens"][0] == decision.predicted_cached_tokens
    prefix = attributes(spans["llm_d.epp.scorer.prefix-cache-scorer"])
    assert prefix["llm_d.epp.scorer.name"] == prefix["llm_d.epp.scorer.type"]
    assert prefix["llm_d.epp.scorer.score.max"] == max(decision.scores[-1].values)


def test_a_rewritten_model_is_that_of_the_spans_of_the_decision(grpc_collector):
    traced = Traced("linear")
    traced.serve(**{"x-llm-d-model-name-rewrite": "m-canary"})
    spans = exported(traced, grpc_collector, 9)
    model = {name: attributes(each).get("gen_ai.request.model") for name, each in spans.items()}
    inner = ("filter_endpoints", "scoring", "pick_endpoints")
    assert [model[name] for name in ("gateway.request", *inner)] == ["m", *["m-canary"] * 3]


def test_the_default_policy_shows_every_term_of_its_costs(grpc_collector):
    traced = Traced()
    record = traced.serve()
    spans = exported(traced, grpc_collector, 5)
    assert [*spans] == [name for name in LINEAR_SPANS if name != "scoring"]
    picked = attributes(spans["pick_endpoints"])
    assert "llm_d.epp.picker.top_scores" not in picked
    costs = picked["warmpick.picker.top_cost_ms"]
    assert costs[0] == min(costs)
    terms = [name for name in picked if name.startswith("warmpick.picker.")]
    assert len(terms) == 9
    prefill, _ = picked["warmpick.picker.prefill_ms"]
    assert prefill == pytest.approx(1e3 * record.decision.predicted_for.prefill_seconds)


def test_stages_have_a_profile_each(grpc_collector):
    traced = Traced(DISAGGREGATED)
    record = traced.serve()
    spans = exported(traced, grpc_collector, 9)
    assert record.decision.disaggregation == "prefill-decode"
    stages = attributes(spans["pick_disagg_profile"])
    assert stages["llm_d.epp.profile_handler.decision"] == "complete_prefill-decode"
    assert stages["llm_d.epp.pd.disaggregation_used"] is True
    assert stages["llm_d.epp.pd.prefill_pod_address"] == record.decision.prefill.address
    ran = [
        attributes(each)["llm_d.epp.scheduling.profile.name"]
        for each in grpc_collector.spans(9)
        if each.name == "run_scheduler_profile"
    ]
    assert ran == ["prefill", "decode"]


@pytest.mark.parametrize(
    ("ratio", "parent_based", "given", "sent", "traced"),
    [
        (0.0, True, SAMPLED, TRACE, True),
        (1.0, True, UNSAMPLED, None, False),
        (0.0, False, SAMPLED, TRACE, False),
        (1.0, False, UNSAMPLED, TRACE, True),
        (1.0, True, "rubbish", "", True),
        (1.0, True, None, "", True),
        (0.0, True, None, "", False),
    ],
)
def test_who_is_sampled_and_what_goes_on_to_the_pod(ratio, parent_based, given, sent, traced):
    watched = Traced(ratio=ratio, parent_based=parent_based)
    headers = {} if given is None else {"traceparent": given}
    exchange, sets = watched.ask(**headers)
    span = exchange.record.span
    assert (span is not None) == traced
    if sent is None:
        assert "traceparent" not in sets
        return
    context = parse(sets["traceparent"])
    assert context is not None
    assert context.sampled == traced
    assert context.span_id != int(SPAN, 16)
    assert not sent or context.trace_id == int(sent, 16)
    if span is not None:
        assert (span.trace_id, span.span_id) == (context.trace_id, context.span_id)
        assert span.parent_id == (int(SPAN, 16) if sent else 0)


def test_state_of_a_trace_that_is_not_gone_on_with_is_not_sent_on():
    watched = Traced()
    _, sets = watched.ask(traceparent="rubbish", tracestate="a=b")
    assert sets["tracestate"] == ""
    _, sets = watched.ask(traceparent=SAMPLED, tracestate="a=b")
    assert "tracestate" not in sets


def test_the_share_of_traces_is_that_which_was_asked_for():
    watched = Traced(ratio=0.25)
    spans = [watched.serve("x").span for _ in range(400)]
    sampled = [each for each in spans if each is not None]
    assert 60 < len(sampled) < 140
    assert len({each.trace_id for each in sampled}) == len(sampled)
    assert len({each.span_id for each in sampled}) == len(sampled)


def test_a_request_that_nobody_can_serve_has_a_span_with_the_reason(grpc_collector):
    traced = Traced(pods=0)
    traced.ask(traceparent=SAMPLED)
    spans = exported(traced, grpc_collector, 2)
    root = spans["gateway.request"]
    assert attributes(root)["error.type"] == "no-endpoints"
    assert root.status.code == root.status.STATUS_CODE_ERROR
    assert root.parent_span_id == bytes.fromhex(SPAN)
    assert [*spans] == ["gateway.request", "gateway.request_orchestration"]


def test_no_text_of_a_prompt_is_exported(grpc_collector):
    traced = Traced("linear")
    traced.serve(SECRET_TEXT, **{"x-llm-d-inference-fairness-id": "f" * 1000})
    exported(traced, grpc_collector, 9)
    (request,) = grpc_collector.requests
    assert b"nobody-may-see" not in request.SerializeToString()
    texts = [
        value
        for span in grpc_collector.spans(9)
        for value in attributes(span).values()
        if isinstance(value, str)
    ]
    assert max(map(len, texts)) == 256


def test_one_that_was_not_read_has_none():
    traced = Traced()
    traced.ask(body=b"{")
    assert traced.outcomes() == {"exported": 0, "failed": 0, "dropped": 0}
    assert traced.export._queue.empty()


def test_a_collector_that_is_away_loses_spans_which_are_counted(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    lost(Traced())


def test_a_collector_that_refuses_loses_spans(grpc_collector):
    grpc_collector.refusing = True
    lost(Traced())


def test_a_collector_that_hangs_loses_spans_and_holds_no_end(grpc_collector):
    grpc_collector.hanging = True
    lost(Traced())


def test_an_exporter_that_cannot_be_made_loses_spans(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://[")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none at all")
    traced = Traced()
    with capture_logs() as logs:
        lost(traced)
    assert [each["event"] for each in logs if each["log_level"] == "error"] == ["tracing.failed"]
    assert traced.export._weight_taken == traced.export._weight_put  # there is room for others


def lost(traced):
    traced.serve()
    traced.serve()
    traced.export.start()
    traced.export.stop()
    assert not traced.export._thread.is_alive()
    assert traced.outcomes() == {"exported": 0, "failed": 2, "dropped": 0}
    page = traced.page()
    assert page['warmpick_traced_requests_total{outcome="failed"}'] == "2.0"


def test_without_the_extra_it_is_said_what_is_missing(monkeypatch):
    monkeypatch.setattr(tracing, "find_spec", lambda _: None)
    scheduling = load("plugins: [{type: least-ttft-picker}]").scheduling
    with pytest.raises(ConfigError, match=r"--tracing: .* pip install 'warmpick\[otel\]'"):
        tracing_or_none(TracingSettings(), scheduling, lambda: 0.0)
    assert tracing_or_none(None, scheduling, lambda: 0.0) is None


def test_what_does_not_fit_the_queue_is_dropped(grpc_collector):
    traced = Traced(queue=3)
    for _ in range(5):
        traced.serve()
    assert traced.outcomes()["dropped"] == 2
    exported(traced, grpc_collector, 15)
    assert traced.outcomes() == {"exported": 3, "failed": 0, "dropped": 2}
    assert traced.export._weight_taken == traced.export._weight_put


def test_long_decisions_fill_the_queue_sooner():
    traced = Traced(pods=200)
    traced.export._weight_taken = -(1 << 18) + 600
    for _ in range(3):
        traced.serve("x")
    assert traced.outcomes()["dropped"] == 2


def test_batches_keep_the_spans_of_a_request_together(grpc_collector):
    traced = Traced(batch=7)
    for _ in range(4):
        traced.serve()
    exported(traced, grpc_collector, 20)
    sizes = [
        sum(len(scope.spans) for each in request.resource_spans for scope in each.scope_spans)
        for request in grpc_collector.requests
    ]
    assert sizes == [10, 10]


def test_the_console_gets_spans_where_it_is_asked_for(capsys):
    traced = Traced(exporter="console")
    traced.serve()
    traced.export.start()
    traced.export.stop()
    assert "gateway.request_orchestration" in capsys.readouterr().out


async def test_a_picker_of_its_own_traces_as_its_environment_says(grpc_collector, tmp_path):
    async def answer(_):
        return web.Response(body=vllm_page(), content_type="text/plain")

    app = web.Application()
    app.router.add_get("/metrics", answer)
    async with TestServer(app) as server:
        lines = f"endpoints:\n- {{name: a, address: 127.0.0.1, port: {server.port}}}\n"
        (tmp_path / "endpoints.yaml").write_text(lines)
        flags = ("--endpoints-file=endpoints.yaml", "--tracing", "--zap-encoder=json")
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": grpc_collector.endpoint,
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "two",
            "OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=epp-0",
            "OTEL_BSP_SCHEDULE_DELAY": "10",
        }
        async with forked_picker((*flags, "--secure-serving=false"), tmp_path, **environ) as log:
            warning = await said(log, "tracing.warning")
            assert warning["warning"].startswith("OTEL_TRACES_SAMPLER_ARG: `two`")
            ports = await said(log, "serving")
            traceparent, page = await routed(ports)
            spans = await asyncio.to_thread(grpc_collector.spans, 5)
    assert {each.trace_id.hex() for each in spans} == {TRACE}
    assert spans[0].span_id.hex() == traceparent.split("-")[2]
    resource = grpc_collector.resource()
    assert resource["service.name"] == "llm-d-router/epp"
    assert resource["k8s.pod.name"] == "epp-0"
    assert "warmpick_traced_requests_total" in page


async def routed(ports):
    """Have one request routed; give the `traceparent` that the pod gets, and a metrics page."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{ports['grpc_port']}") as channel:
        peer = Peer(channel)
        reply = await peer.ask(head(traceparent=SAMPLED), body())
        sets = {
            each.header.key: each.header.raw_value.decode()
            for each in reply.request_headers.response.header_mutation.set_headers
        }
        await peer.send(response_head(), response_body())
        await peer.call.done_writing()
        await peer.rest()
    async with aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{ports['metrics_port']}/metrics"
        async with session.get(url) as response:
            return sets["traceparent"], await response.text()
