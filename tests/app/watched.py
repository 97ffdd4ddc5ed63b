"""A picker without sockets whose requests are observed: messages in, steps out."""

import json
import random
from itertools import count
from uuid import UUID

from epp.adapters.telemetry.metrics import MetricSources, Telemetry
from epp.app.director import PickerDirector
from epp.app.observers import Observers
from epp.config.file import POLICIES, load
from epp.model.endpoint import Load
from epp.model.events import EndpointUpserted, LoadReported
from epp.model.fleet import Fleet
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.request import RequestId
from epp.policy.flow.flow_control import FlowControl
from epp.policy.flow.settings import FlowSettings
from epp.policy.scheduler import Scheduler
from epp.protocol.extproc.exchange import Exchange
from epp.protocol.extproc.messages import (
    BodyMode,
    HeadersReply,
    Modes,
    RequestBody,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
)
from epp.protocol.extproc.settings import ExchangeSettings
from tests.strategies import SECRET, endpoint, text

DUPLEX = Modes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED)
SHARED = text(512)
SECOND = 1.0
DISAGGREGATED = """
plugins:
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
- {type: always-disagg-pd-decider}
- {type: least-ttft-picker}
- {type: queue-scorer, name: queue}
- {type: max-score-picker}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: queue}, {pluginRef: max-score-picker}]}
- {name: decode, plugins: [{pluginRef: least-ttft-picker}]}
"""


class Watched:
    """`pods` endpoints under a policy; `beside` are observers, `begin_span` begins traces.

    The clock goes on by `SECOND` with each request and by a tenth of it in between.
    """

    def __init__(self, policy="least-ttft", pods=3, apart=()):
        self.now = 1000.0
        self.settings = load(POLICIES.get(policy, policy))
        self.fleet = Fleet(BlockHasher(SECRET))
        self.begin_span = None
        self._numbers = count()
        for number in range(pods):
            added = endpoint(f"pod-{number}", f"10.0.0.{number + 1}")
            self.fleet.apply(EndpointUpserted(added), self.now)
            said = Load(block_size=16, num_blocks=1000, engine="vllm", at=self.now)
            self.fleet.apply(LoadReported(added.id, said), self.now)
        self.observe()

    def observe(self, *observers):
        made = Observers(observers)
        scheduler = Scheduler(
            self.fleet,
            self.settings.scheduling,
            random.Random(1).randrange,  # noqa: S311 (a test's)
            quoted=made.quoted,
            committing=made.committing,
        )
        self.telemetry = Telemetry(
            MetricSources(
                "pool", self.fleet.loads, self.fleet.cache_stats, lambda: 0, (made.collect,)
            )
        )
        self.flow = FlowControl(scheduler, self.fleet, FlowSettings())
        self.director = PickerDirector(
            self.flow,
            self.fleet.apply,
            self.telemetry,
            self.clock,
            None,
            poll_now=lambda _: None,
            ended=made.ended,
        )

    def clock(self):
        return self.now

    def ask(self, content=SHARED, model="m", body=None, **headers):
        """Send a request up to its decision; give the exchange and the headers that go on."""
        self.now += SECOND
        settings = ExchangeSettings(begin_span=self.begin_span)
        name = RequestId(str(UUID(int=next(self._numbers), version=4)))
        exchange = Exchange(self.director, settings, name, self.now)
        asked = {"model": model, "messages": [{"role": "user", "content": content}], "stream": True}
        data = json.dumps(asked).encode() if body is None else body
        head = {":method": "POST", ":path": "/v1/chat/completions", **headers}
        exchange.receive(RequestHeaders(headers=head, modes=DUPLEX), self.now)
        self.now += SECOND / 10
        replies = exchange.receive(RequestBody(body=data, end_of_stream=True), self.now).replies
        sent: dict[str, str] = {}
        for each in replies:
            if isinstance(each, HeadersReply):
                sent |= dict(each.mutation.set_headers)
        return exchange, sent

    def answer(self, exchange, cached=0, tokens=None, status="200", served=None):
        """Have a streamed response pass to its end."""
        record = exchange.record
        prompt = record.decision.prompt_tokens if tokens is None else tokens
        head = {":status": status, "content-type": "text/event-stream"}
        self.now += SECOND / 10
        exchange.receive(ResponseHeaders(headers=head, served=served), self.now)
        exchange.receive(ResponseBody(body=b'data: {"choices":[]}\n\n'), self.now)
        self.now += SECOND / 10
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        last = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
        exchange.receive(ResponseBody(body=last, end_of_stream=True), self.now)
        return record

    def serve(self, content=SHARED, cached=0, **headers):
        exchange, _ = self.ask(content, **headers)
        return self.answer(exchange, cached)

    def page(self):
        """The metrics page's samples, by what stands before the value."""
        lines = "".join(self.telemetry.page()).splitlines()
        return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
