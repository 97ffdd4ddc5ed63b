"""The picker without its sockets: ext_proc messages go in as bytes and come out as bytes.

What is left is what the product does itself for a request: the codec, the exchange, the policy,
the model of the fleet, telemetry.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from uuid import UUID

import msgspec

from bench import messages
from bench.extproc.reply import BLOCK_SIZE, NUM_BLOCKS, Ask, json_body
from bench.extproc.workload import BYTES_PER_TOKEN, Shape
from bench.messages import request_messages, response_messages
from epp.adapters.telemetry.metrics import MetricSources, Telemetry
from epp.app.cache_sources import build_fleet
from epp.app.director import PickerDirector
from epp.app.observers import Observer, Observers
from epp.config.file import DEFAULT_POLICY, POLICIES, load
from epp.model.endpoint import Endpoint, Load
from epp.model.events import EndpointUpserted, LoadReported
from epp.model.fleet import Fleet
from epp.model.request import Api, InferenceRequest, RequestId
from epp.model.request_events import Aborted
from epp.policy.flow.flow_control import FlowControl
from epp.policy.flow.settings import FlowSettings
from epp.policy.scheduler import Scheduler
from epp.protocol.bodies.request_json import parse_request
from epp.protocol.extproc.codec import decode, encode
from epp.protocol.extproc.exchange import Exchange
from epp.protocol.extproc.settings import ExchangeSettings

_APART_S, _ANSWER_S = 0.01, 0.03

Beside = Callable[[Fleet, Callable[[], float]], Sequence[Observer]]


class Messages(msgspec.Struct, frozen=True):
    """What Envoy sends of one exchange, encoded: the request's messages, and the response's."""

    request: tuple[bytes, ...]
    response: tuple[bytes, ...]

    @classmethod
    def about(cls, body: bytes) -> "Messages":
        """Put a request with this body and a short JSON response into messages."""
        tokens = len(body) // BYTES_PER_TOKEN
        answer = json_body(Ask(tokens, 0, 0, 0, 0.0), cached=tokens // 64 * BLOCK_SIZE)
        return cls(
            tuple(request_messages(body)), tuple(response_messages("application/json", [answer]))
        )


_DEFAULT = FlowSettings()


class RequestPath:
    """A picker with so many `endpoints`, and a clock that goes on by itself.

    `beside` returns what observes its requests, given its fleet and its clock. `exchanges` are
    the settings of its exchanges. `flow` are the settings of what its requests may wait in.
    """

    def __init__(
        self,
        endpoints: int,
        beside: Beside = lambda *_: (),
        exchanges: ExchangeSettings | None = None,
        flow: FlowSettings = _DEFAULT,
    ) -> None:
        self.settings = exchanges or ExchangeSettings()
        settings = load(POLICIES[DEFAULT_POLICY])
        self.now = 1.0
        self._numbers = count()
        self.fleet = fleet = build_fleet(settings, b"bench", 5)
        for number in range(endpoints):
            endpoint = Endpoint("bench", f"pod-{number}", f"10.1.{number >> 8}.{number & 255}", 80)
            said = Load(block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, engine="vllm", at=self.now)
            fleet.apply(EndpointUpserted(endpoint), self.now)
            fleet.apply(LoadReported(endpoint.id, said), self.now)
        sources = MetricSources(
            "bench", fleet.loads, fleet.cache_stats, lambda: fleet.indexed_blocks
        )
        self.telemetry = Telemetry(sources)
        observers = Observers(beside(fleet, lambda: self.now))
        scheduler = Scheduler(
            fleet,
            settings.scheduling,
            random.Random(1).randrange,
            quoted=observers.quoted,
            committing=observers.committing,
        )
        self.flow = FlowControl(scheduler, fleet, flow)
        self.director = PickerDirector(
            self.flow,
            fleet.apply,
            self.telemetry,
            lambda: self.now,
            None,
            ended=observers.ended,
            poll_now=lambda _: None,
        )

    def exchange(self, messages: Messages) -> int:
        """Take a request from its headers to the end of its response; the bytes that went out."""
        self.now += _APART_S
        exchange = Exchange(self.director, self.settings, self._id(), self.now)
        groups = ((self.now, messages.request), (self.now + _ANSWER_S, messages.response))
        return sum(
            len(encode(reply))
            for now, group in groups
            for message in group
            for reply in exchange.receive(decode(message), now).replies
        )

    def request(self, body: bytes) -> InferenceRequest:
        """Read a chat completion as the exchange would."""
        parsed = parse_request(Api.CHAT, body)
        return InferenceRequest(
            id=self._id(),
            api=Api.CHAT,
            model=parsed.model,
            target_model=parsed.model,
            prompts=parsed.prompts,
        )

    def pick(self, request: InferenceRequest) -> None:
        """Decide on a request, and book it."""
        self.now += _APART_S
        self.director.route(request, self.now)

    def forget(self, request: InferenceRequest) -> None:
        """Let a request end that was picked for; what it left in a cache stays."""
        self.fleet.apply(Aborted(request.id), self.now)

    def _id(self) -> RequestId:
        return RequestId(str(UUID(int=next(self._numbers), version=4)))


def bodies(size: int) -> Iterator[bytes]:
    """Chat completions of `size` bytes without end."""
    return messages.bodies(Shape(size=size), salt="corridor")
