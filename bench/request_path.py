"""The picker without its sockets: ext_proc messages go in as bytes and come out as bytes.

What is left is what the product does itself for a request: the codec, the exchange, the policy,
the model of the fleet, telemetry.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from uuid import UUID

import msgspec

from bench.extproc.workload import BYTES_PER_TOKEN, MODEL, Shape, requests
from epp._pb import ext_proc_pb2 as pb
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
from epp.policy.scheduler import Scheduler
from epp.protocol.bodies.request_json import parse_request
from epp.protocol.extproc.codec import decode, encode
from epp.protocol.extproc.exchange import Exchange
from epp.protocol.extproc.settings import ExchangeSettings

BLOCK, BLOCKS = 16, 35_000
_PIECE = 65_536
"""As much of a body as Envoy sends at once."""
_APART_S, _ANSWER_S = 0.01, 0.03
_GENERATED = 24


Beside = Callable[[Fleet, Callable[[], float]], Sequence[Observer]]


class Messages(msgspec.Struct, frozen=True):
    """What Envoy sends of one exchange, encoded: the request's messages, and the response's."""

    request: tuple[bytes, ...]
    response: tuple[bytes, ...]

    @classmethod
    def about(cls, body: bytes) -> "Messages":
        """Put a request with this body and a short JSON response into messages."""
        pieces = [body[start : start + _PIECE] for start in range(0, len(body), _PIECE)]
        said = [pb.HttpBody(body=piece) for piece in pieces]
        said[-1].end_of_stream = True
        answer = pb.HttpBody(body=_answer(len(body) // BYTES_PER_TOKEN), end_of_stream=True)
        return cls(
            (_HEAD, *(_encoded(request_body=each) for each in said)),
            (_ANSWER_HEAD, _encoded(response_body=answer)),
        )


class RequestPath:
    """A picker with so many `endpoints`, and a clock that goes on by itself.

    `beside` returns what observes its requests, given its fleet and its clock. `exchanges` are
    the settings of its exchanges.
    """

    def __init__(
        self,
        endpoints: int,
        beside: Beside = lambda *_: (),
        exchanges: ExchangeSettings | None = None,
    ) -> None:
        self._settings = exchanges or ExchangeSettings()
        settings = load(POLICIES[DEFAULT_POLICY])
        self._now = 1.0
        self._numbers = count()
        self._fleet = fleet = build_fleet(settings, b"bench", 5)
        for number in range(endpoints):
            endpoint = Endpoint("bench", f"pod-{number}", f"10.1.{number >> 8}.{number & 255}", 80)
            said = Load(block_size=BLOCK, num_blocks=BLOCKS, engine="vllm", at=self._now)
            fleet.apply(EndpointUpserted(endpoint), self._now)
            fleet.apply(LoadReported(endpoint.id, said), self._now)
        sources = MetricSources(
            "bench", fleet.loads, fleet.cache_stats, lambda: fleet.indexed_blocks
        )
        self.telemetry = Telemetry(sources)
        observers = Observers(beside(fleet, lambda: self._now))
        scheduler = Scheduler(
            fleet,
            settings.scheduling,
            random.Random(1).randrange,
            quoted=observers.quoted,
            committing=observers.committing,
        )
        self._director = PickerDirector(
            scheduler,
            fleet.apply,
            self.telemetry,
            lambda: self._now,
            None,
            ended=observers.ended,
            poll_now=lambda _: None,
        )

    def exchange(self, messages: Messages) -> int:
        """Take a request from its headers to the end of its response; the bytes that went out."""
        self._now += _APART_S
        exchange = Exchange(self._director, self._settings, self._id(), self._now)
        groups = ((self._now, messages.request), (self._now + _ANSWER_S, messages.response))
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
        self._now += _APART_S
        self._director.route(request, self._now)

    def forget(self, request: InferenceRequest) -> None:
        """Let a request end that was picked for; what it left in a cache stays."""
        self._fleet.apply(Aborted(request.id), self._now)

    def _id(self) -> RequestId:
        return RequestId(str(UUID(int=next(self._numbers), version=4)))


def bodies(size: int) -> Iterator[bytes]:
    """Chat completions of `size` bytes without end, as the benchmark `extproc` sends them."""
    for buffers in requests(Shape(size=size), host="bench", salt="corridor"):
        yield b"".join(buffers).partition(b"\r\n\r\n")[2]


def _encoded(**parts: object) -> bytes:
    return pb.ProcessingRequest(**parts).SerializeToString()  # type: ignore[arg-type]  # one part of the oneof


def _headers(values: Mapping[str, str]) -> pb.HttpHeaders:
    listed = [pb.HeaderValue(key=key, raw_value=value.encode()) for key, value in values.items()]
    return pb.HttpHeaders(headers=pb.HeaderMap(headers=listed))


def _answer(prompt_tokens: int) -> bytes:
    return msgspec.json.encode(
        {
            "id": "chatcmpl-bench",
            "object": "chat.completion",
            "model": MODEL,
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "word " * 24}}],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": _GENERATED,
                "prompt_tokens_details": {"cached_tokens": prompt_tokens // 64 * BLOCK},
            },
        }
    )


_HEAD = _encoded(
    request_headers=_headers(
        {
            ":method": "POST",
            ":path": "/v1/chat/completions",
            ":authority": "bench",
            ":scheme": "http",
            "user-agent": "warmpick-bench",
            "accept": "*/*",
            "content-type": "application/json",
            "x-forwarded-proto": "http",
            "x-request-id": "0f0e0d0c-0b0a-4908-8706-050403020100",
        }
    ),
    protocol_config=pb.ProtocolConfiguration(
        request_body_mode="FULL_DUPLEX_STREAMED", response_body_mode="FULL_DUPLEX_STREAMED"
    ),
)
_ANSWER_HEAD = _encoded(
    response_headers=_headers({":status": "200", "content-type": "application/json"})
)
