"""Any value where a number belongs: no request stays in the books, and none of them is hurt.

In process, as the product runs it: encoded messages go through the exchange to the director, the
scheduler and the fleet; pages, annotations and labels come as their readers bring them.
"""

import random
from itertools import count

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epp._pb import ext_proc_pb2 as pb
from epp.adapters.telemetry.metrics import MetricSources, Telemetry
from epp.app.cache_sources import build_fleet
from epp.app.director import PickerDirector
from epp.app.exchanges import exchange_settings
from epp.app.observers import Faults, Observer, Observers
from epp.app.options import ServeOptions
from epp.config.file import POLICIES, load
from epp.model.events import EndpointUpserted, LoadReported
from epp.model.request import RequestId
from epp.policy.flow.flow_control import FlowControl
from epp.policy.flow.settings import FlowSettings
from epp.policy.scheduler import Scheduler
from epp.protocol.extproc.codec import decode, encode
from epp.protocol.extproc.exchange import Exchange
from epp.protocol.extproc.record import RequestRecord
from epp.protocol.kube.objects import KubePod
from epp.protocol.kube.pod_endpoints import endpoints_of
from epp.protocol.metrics.metrics_reader import MetricsReader
from epp.protocol.metrics.page import Page
from tests.model.invariants import check_invariants
from tests.protocol.kube.objects import pod

PORTS = (8000, 8001)
EVERY_PRODUCER = """
plugins:
- {type: inflight-load-producer, parameters: {addEstimatedOutputTokens: true}}
- {type: predicted-latency-producer}
- {type: latency-scorer}
- {type: token-load-scorer}
- {type: context-length-aware}
- {type: load-aware-scorer}
- {type: max-score-picker}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: latency-scorer}
  - {pluginRef: token-load-scorer}
  - {pluginRef: context-length-aware}
  - {pluginRef: load-aware-scorer}
  - {pluginRef: max-score-picker}
"""
CONFIGURATIONS = {
    "least-ttft": POLICIES["least-ttft"],
    "linear": POLICIES["linear"],
    "every producer": EVERY_PRODUCER,
}

whole = st.one_of(
    st.integers(-2, 3),
    st.sampled_from((-1, 0, 2**24, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, -(10**30))),
    st.integers(),
)
numbers = st.one_of(
    whole.map(str),
    st.floats().map(repr),
    st.sampled_from(("-0", "1e3", "1e400", "-1e400", "0.5", "1e-320", "1" * 400)),
)
"""Numbers as they are written, and what Python writes for those that are none."""
texts = st.one_of(numbers, st.sampled_from(("", " ", "none", "0x10", "1_0", "+1", "٣", "1,2")))
values = st.one_of(
    numbers,
    texts.map(lambda text: msgspec.json.encode(text).decode()),
    st.sampled_from(("null", "true", "[]", "[1]", "{}", '{"a": 1}')),
)
"""The same as JSON, or what some take for it."""


def mostly(good, others):
    """Draw what is good three times in four, so that one odd value is not hidden by another."""
    return st.tuples(st.integers(0, 3), good, others).map(lambda d: d[2] if d[0] == 3 else d[1])


often_good = mostly(st.sampled_from(("-1", "0", "1", "20", "400")), values)

LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n", "priority", "seed")
SAMPLING = ("max_new_tokens", "max_tokens", "n")
bodies = st.one_of(
    *(
        st.tuples(
            st.just(path),
            st.dictionaries(st.sampled_from((*LIMITS, "stream")), often_good, max_size=3),
            st.just(prompt),
        )
        for path, prompt in (
            ("/v1/chat/completions", '"messages":[{"role":"user","content":"hello there"}]'),
            ("/v1/completions", '"prompt":"once upon a time"'),
            ("/v1/completions", '"prompt":[1,2,3,-4,99999999999]'),
            ("/v1/completions", '"prompt":[1,2,3,4,5,6,7,8]'),
            ("/v1/embeddings", '"input":"words"'),
            ("/v1/responses", '"input":"hello"'),
            ("/v1/messages", '"messages":[{"role":"user","content":"hello"}]'),
        )
    ),
    st.tuples(
        st.just("/generate"),
        st.dictionaries(st.sampled_from(SAMPLING), often_good, max_size=2).map(
            lambda fields: {"sampling_params": json_object(fields)}
        ),
        st.just('"text":"hello"'),
    ),
)
USAGE = (
    "prompt_tokens",
    "completion_tokens",
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
usages = st.tuples(
    st.dictionaries(st.sampled_from(USAGE), often_good, max_size=4), st.none() | often_good
).map(
    lambda found: json_object(
        found[0]
        | ({} if found[1] is None else {"prompt_tokens_details": f'{{"cached_tokens":{found[1]}}}'})
    )
)
ORCA = ("kv_cache_usage_perc", "num_requests_waiting", "num_requests_running", "x")
reports = st.one_of(
    st.dictionaries(st.sampled_from(ORCA), texts).map(
        lambda found: "TEXT " + ", ".join(f"named_metrics.{k}={v}" for k, v in found.items())
    ),
    st.dictionaries(st.sampled_from(ORCA), values).map(
        lambda found: f'JSON {{"named_metrics":{json_object(found)}}}'
    ),
)
request_headers = st.dictionaries(
    st.sampled_from(
        ("content-length", "x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms", "x-request-timeout")
    ),
    texts,
    max_size=3,
)
response_headers = st.fixed_dictionaries(
    {
        ":status": mostly(st.just("200"), texts | st.sampled_from(("400", "503"))),
        "content-type": st.sampled_from(("application/json", "text/event-stream")),
    },
    optional={
        "content-length": texts,
        "retry-after": texts,
        "endpoint-load-metrics": reports,
    },
)
FAMILIES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "process_start_time_seconds",
)
CONFIGURED = ("block_size", "num_gpu_blocks", "kv_cache_size_tokens")
pages = st.tuples(
    st.dictionaries(st.sampled_from(FAMILIES), texts, max_size=6),
    st.dictionaries(st.sampled_from(CONFIGURED), texts, max_size=3),
    texts,
)
LABELS = ("warmpick.io/offload-tokens", "warmpick.io/data-parallel-rank")
places = st.tuples(
    st.lists(texts | st.sampled_from(("8000", "8001")), max_size=3).map(",".join) | st.none(),
    st.dictionaries(st.sampled_from(LABELS), texts, max_size=2),
)


def json_object(fields):
    return "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}"


def page_of(found):
    samples, configured, engines = found
    lines = [f'{name}{{engine="0"}} {value}' for name, value in samples.items()]
    labels = ",".join(f'{name}="{value}"' for name, value in configured.items())
    lines.append(f'vllm:cache_config_info{{engine="0",{labels}}} {engines or 1}')
    return Page("".join(f"{line}\n" for line in lines).encode())


def encoded(**parts):
    return pb.ProcessingRequest(**parts).SerializeToString()


def headers(fields, *, end=False):
    listed = [pb.HeaderValue(key=key, raw_value=text.encode()) for key, text in fields.items()]
    return pb.HttpHeaders(headers=pb.HeaderMap(headers=listed), end_of_stream=end)


class Picker:
    """A picker without its sockets and its jobs; what it fails on is in `faults`."""

    def __init__(self, configuration):
        found = load(configuration)
        self.now = 1000.0
        self.numbers = count()
        self.faults = Faults()
        self.ended = list[RequestRecord]()
        self.fleet = build_fleet(found, b"a secret", 5, self.faults)
        self.readers = {}
        observers = Observers((Observer(name="test", ended=self.ended.append),))
        scheduler = Scheduler(
            self.fleet,
            found.scheduling,
            random.Random(1).randrange,  # noqa: S311 (a test's)
            on_fault=self.faults,
        )
        sources = MetricSources(
            "pool", self.fleet.loads, self.fleet.cache_stats, lambda: self.fleet.indexed_blocks
        )
        self.director = PickerDirector(
            FlowControl(scheduler, self.fleet, FlowSettings(holds=False)),  # there is no event loop
            self.fleet.apply,
            Telemetry(sources),
            lambda: self.now,
            None,
            poll_now=lambda _: None,
            needs_end=self.fleet.needs_end,
            ended=observers.ended,
            on_fault=self.faults,
        )
        options = ServeOptions(
            settings=found,
            source=(),
            max_body_bytes=1 << 20,
            show_decision=True,
            request_orca=True,
            emit_scores=True,
        )
        self.settings = exchange_settings(options, lambda request: request, keep_body=False)
        for number in range(2):
            self.place(number, (None, {}))

    def place(self, number, said):
        """Take in what a pod says of itself; without any port it stays as it was."""
        ports, labels = said
        written = pod(f"pod-{number}", f"10.0.0.{number + 1}", ports=ports, labels=labels)
        for endpoint in endpoints_of(msgspec.convert(written, KubePod), PORTS):
            self.fleet.apply(EndpointUpserted(endpoint), self.now)
            self.readers[endpoint.id] = MetricsReader(endpoint)

    def scrape(self, page):
        for identity, reader in self.readers.items():
            load = reader.read(page, self.now).load
            self.fleet.apply(LoadReported(identity, load), self.now)

    def exchange(self):
        identity = RequestId(str(next(self.numbers)))
        return Exchange(self.director, self.settings, identity, self.now)

    def receive(self, exchange, message):
        self.now += 0.01
        replies = exchange.receive(decode(message), self.now).replies
        return [encode(each) for each in replies]


def converse(picker, asked, answer, end):
    """Take one request to its end: `end` is how."""
    (path, fields, prompt), sent = asked
    answered, usage = answer
    exchange = picker.exchange()
    head = {":method": "POST", ":path": path, "content-type": "application/json", **sent}
    modes = pb.ProtocolConfiguration(
        request_body_mode="FULL_DUPLEX_STREAMED", response_body_mode=end.get("mode", "STREAMED")
    )
    body = f'{{"model":"m",{prompt}' + json_object(fields).replace("{", ",", 1)
    body = body.replace(",}", "}")
    said = [
        encoded(request_headers=headers(head), protocol_config=modes),
        encoded(request_body=pb.HttpBody(body=body.encode(), end_of_stream=True)),
        encoded(response_headers=headers(answered)),
    ]
    answer = f'{{"id":"x","model":"m","usage":{usage}}}'
    if answered.get("content-type") == "text/event-stream":
        said += [encoded(response_body=pb.HttpBody(body=b"data: {}\n\n")) for _ in range(40)]
        answer = f"data: {answer}\n\ndata: [DONE]\n\n"
    whole = end["how"] == "whole"
    said.append(encoded(response_body=pb.HttpBody(body=answer.encode(), end_of_stream=whole)))
    for message in said[: end.get("after", len(said))]:
        picker.receive(exchange, message)
    if end["how"] == "half-closed":
        exchange.half_closed(picker.now)
        exchange.half_closed(picker.now)
    exchange.cancelled(picker.now)


ends = st.fixed_dictionaries(
    {"how": st.sampled_from(("whole", "whole", "whole", "whole", "half-closed", "reset"))},
    optional={
        "after": st.integers(1, 60),
        "mode": st.sampled_from(("STREAMED", "FULL_DUPLEX_STREAMED", "BUFFERED", "NONE")),
    },
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("page"), pages),
        st.tuples(st.just("place"), st.integers(0, 2), places),
        st.tuples(
            st.just("request"),
            st.tuples(bodies, request_headers),
            st.tuples(response_headers, usages),
            ends,
        ),
        st.tuples(st.just("wait"), st.sampled_from((0.1, 5.0, 100.0))),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("configuration", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=steps)
def test_no_value_keeps_a_request_in_the_books(configuration, steps):
    picker = Picker(configuration)
    requests = 0
    for kind, *given_to in steps:
        if kind == "page":
            picker.scrape(page_of(*given_to))
        elif kind == "place":
            picker.place(*given_to)
        elif kind == "wait":
            picker.now += given_to[0]
        else:
            requests += 1
            converse(picker, *given_to)
        check_invariants(picker.fleet)
    picker.now += 1e5  # what nobody observes ends by itself
    picker.scrape(page_of(({}, {}, "1")))
    check_invariants(picker.fleet)
    assert picker.fleet.in_flight == {}
    assert len(picker.ended) == requests
    assert not picker.faults.counts
    for each in picker.fleet.pods.values():
        assert each.ledger.requests == each.ledger.count_prefilling(picker.now) == 0
        assert each.scheduler.cache.free == each.scheduler.cache.capacity
