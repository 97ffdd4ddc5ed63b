"""Envoy's side of an ext_proc stream, from its own messages and stubs (xds-protos)."""

import json
import time
from contextlib import asynccontextmanager

import grpc
import grpc.aio
from envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.service.ext_proc.v3.external_processor_pb2_grpc import ExternalProcessorStub

from epp.adapters.extproc.contract import ExtProcSettings
from epp.model.decision import Decision
from epp.model.endpoint import Endpoint
from epp.model.request import RequestId
from epp.protocol.extproc.director import PendingDecision
from epp.protocol.extproc.exchange import Exchange
from epp.protocol.extproc.settings import ExchangeSettings
from tests.strategies import text

DEADLINE = 10
METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
POD = Endpoint("default", "pod-0", "10.0.0.1", 8000)
DECISION = Decision(endpoints=(POD,))
TARGET = b"10.0.0.1:8000"
CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
ANSWER = json.dumps({"usage": {"prompt_tokens": 3, "completion_tokens": 1}}).encode()
DUPLEX, STREAMED = ProcessingMode.FULL_DUPLEX_STREAMED, ProcessingMode.STREAMED
BUFFERED, NONE = ProcessingMode.BUFFERED, ProcessingMode.NONE
BUFFERED_PARTIAL = ProcessingMode.BUFFERED_PARTIAL


class Director:
    """Answers as it is told, later where `answer` is None, and remembers what it hears."""

    def __init__(self):
        self.answer: Decision | BaseException | None = DECISION
        self.pending: list[PendingDecision] = []
        self.opened = 0
        self.events = []
        self.records = []

    def exchange(self, now):
        self.opened += 1
        return Exchange(self, ExchangeSettings(), RequestId(f"id-{self.opened}"), now)

    def route(self, request, now):
        if isinstance(self.answer, BaseException):
            raise self.answer
        if self.answer is not None:
            return self.answer
        self.pending.append(PendingDecision())
        return self.pending[-1]

    def observe(self, event, now):
        self.events.append(event)

    def needs_end(self, record, now):
        return False

    def exchange_ended(self, record):
        self.records.append(record)

    def ends(self):
        return [record.outcome for record in self.records]


@asynccontextmanager
async def serving(transport, director, health=None, **settings):
    """A server, which may offer health services, and a channel to it."""
    made = ExtProcSettings(**{"address": "127.0.0.1", "port": 0, **settings})
    server = transport(director.exchange, time.monotonic, made)
    if health is not None:
        server.offer_health(health)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            yield server, channel
    finally:
        await server.stop(0)


class Peer:
    """Envoy's side of one stream."""

    def __init__(self, channel, deadline=DEADLINE, *, reconnects=False):
        stub = ExternalProcessorStub(channel)
        self.call = stub.Process(timeout=deadline, wait_for_ready=reconnects)

    async def send(self, *messages):
        for message in messages:
            await self.call.write(message)

    async def receive(self):
        """The next reply, None at the end."""
        reply = await self.call.read()
        return None if reply is grpc.aio.EOF else reply

    async def ask(self, *messages):
        """Send, and give the next reply."""
        await self.send(*messages)
        return await self.receive()

    async def rest(self):
        """All replies up to the end, which must be a good one."""
        replies = []
        while reply := await self.receive():
            replies.append(reply)
        assert await self.call.code() is grpc.StatusCode.OK
        return replies


def header_map(headers):
    pairs = [HeaderValue(key=key, raw_value=value.encode()) for key, value in headers.items()]
    return HeaderMap(headers=pairs)


def head(modes=(DUPLEX, DUPLEX), method="POST", path="/v1/chat/completions", *, end=False, **more):
    request, response = modes
    config = pb.ProtocolConfiguration(request_body_mode=request, response_body_mode=response)
    headers = header_map({":method": method, ":path": path, **more})
    parts = pb.HttpHeaders(headers=headers, end_of_stream=end)
    return pb.ProcessingRequest(request_headers=parts, protocol_config=config)


def body(data=CHAT, *, end=True):
    return pb.ProcessingRequest(request_body=pb.HttpBody(body=data, end_of_stream=end))


def response_head(*, end=False, **more):
    headers = header_map({":status": "200", "content-type": "application/json", **more})
    return pb.ProcessingRequest(response_headers=pb.HttpHeaders(headers=headers, end_of_stream=end))


def response_body(data=ANSWER, *, end=True):
    return pb.ProcessingRequest(response_body=pb.HttpBody(body=data, end_of_stream=end))


def destination(reply, part):
    """Where a reply sends the request, by header; it must say the same in metadata."""
    (value,) = [
        option.header.raw_value
        for option in getattr(reply, part).response.header_mutation.set_headers
        if option.header.key == "x-gateway-destination-endpoint"
    ]
    said = reply.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"]
    assert said == value.decode()
    return value


async def answered(channel, number):
    """Ask where a prompt goes, and have it answered; return where it went."""
    asked = {"model": "m", "prompt": text(1000, seed=f"prompt {number}"), "stream": False}
    peer = Peer(channel)
    reply = await peer.ask(head(path="/v1/completions"), body(json.dumps(asked).encode()))
    usage = {"usage": {"prompt_tokens": 1000, "completion_tokens": 5}}
    await peer.send(response_head(), response_body(json.dumps(usage).encode()))
    await peer.call.done_writing()
    await peer.rest()
    return destination(reply, "request_headers")


def kind(reply):
    return reply.WhichOneof("response")


def streamed(reply):
    part = getattr(reply, kind(reply))
    piece = part.response.body_mutation.streamed_response
    return piece.body, piece.end_of_stream
