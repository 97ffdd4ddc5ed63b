"""The response half of an exchange: passes the response back to the client, and learns from it.

Every generated token may pass as a chunk. So it decodes nothing but usage, and changes nothing but
the model's name under a rewrite.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from epp.model.events import Event
from epp.model.request import Api, Usage
from epp.model.request_events import Failure, FirstToken, Generated, ResponseNamed
from epp.protocol.bodies.apis import FRAMED
from epp.protocol.bodies.model_rewrite import ModelRestorer, Restorer
from epp.protocol.bodies.object_scanner import ObjectScanner
from epp.protocol.bodies.usage import merge_usage
from epp.protocol.bodies.usage_reader import FramedUsage, UsageReader, usage_reader
from epp.protocol.extproc.debug_headers import queue_duration_header
from epp.protocol.extproc.headers import content_coding
from epp.protocol.extproc.messages import (
    CHUNK_BYTES,
    UNCHANGED,
    WHOLE_BODIES,
    BodyMode,
    BodyReply,
    Chunk,
    HeadersReply,
    Message,
    Mutation,
    Reply,
    Reporting,
    ResponseBody,
    ResponseHeaders,
    TrailersReply,
    chunks,
)
from epp.protocol.extproc.names import ATTEMPTS
from epp.protocol.extproc.record import RequestRecord
from epp.protocol.extproc.settings import ExchangeSettings, Headers
from epp.protocol.metrics.orca import parse_orca

if TYPE_CHECKING:  # see `_id_reader`
    from epp.protocol.response_ids import ResponseIdReader

Observe = Callable[[Event, float], None]
HeaderSource = Callable[[RequestRecord], Headers]

_PROGRESS_CHUNKS: Final = 32
"""Chunks from one report of a stream's progress to the next: about two blocks of 16 tokens."""
_EVENTS: Final = "text/event-stream"
_GRPC: Final = "application/grpc"
_JSON: Final = "application/json"
_USAGE_AT_TOP: Final = (Api.CHAT, Api.COMPLETIONS, Api.EMBEDDINGS)
"""APIs whose answers and events have `usage` at their top level."""
_DONE: Final = b"data: [DONE]\n\n"
"""The last event of a stream (OpenAI API, `stream`)."""
_DATA: Final = b"\ndata:"
"""The beginning of an event's data, after another line."""
_OUTPUT: Final = re.compile(
    rb"[\r\n]event:(?! ?response\.(?:created|in_progress|queued)[\r\n])[^\r\n]+[\r\n]"
)
"""The name of an event (WHATWG HTML §9.2.6), except those that open a stream of the Responses API
before anything is computed (vLLM responses/serving.py)."""
_ERRORS: Final = (b'data: {"error": {', b'data: {"error":{', b"event: error\n", b"event: error\r\n")
"""How an event with an error begins: once a stream has begun, its status cannot say so (vLLM
generate/base/serving.py, anthropic/serving.py)."""
_SERVERS_OWN: Final = re.compile(rb"""(?:"code": ?|^event: error\r?\n.*'code': )5\d\d""")
"""Tells a server's own error from the request's. In its Messages API, vLLM calls each of them
`internal_error`, and only quotes the code."""
_LONGEST_NAME: Final = 64
"""Bytes that are kept of the last piece: the line that names an event may come in two pieces."""
_GOOD: Final = 200
_SERVER_ERROR: Final = 500
"""The first HTTP status of a server's error (RFC 9110 §15.6)."""
_GATEWAY_STATUSES: Final = (502, 503)
"""Statuses with which Envoy answers if a model server cannot be reached, or breaks off."""
_GRPC_STATUSES: Final = {"13": Failure.ERROR, "14": Failure.GATEWAY}
"""For responses with trailers alone: INTERNAL; UNAVAILABLE, which is Envoy's 502 and 503."""
_OVERLOADED: Final = "x-envoy-overloaded"
"""Envoy sets it on requests that it did not try to send: too many are under way for its limits."""
_TOO_MANY: Final = 429
_UNAVAILABLE: Final = 503
_RETRY_AFTER: Final = "retry-after"
"""When to retry (RFC 9110 §10.2.3): a server that sheds load sends it."""
_GENERATING: Final = (
    *(Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES, Api.GENERATE, Api.SGLANG_GENERATE),
)
"""APIs over HTTP whose good answers are never empty."""

# Looked up once: docs/adr/0013-compiled.md says why.
_DUPLEX: Final = BodyMode.FULL_DUPLEX_STREAMED
_NONE: Final = BodyMode.NONE
_STREAMED: Final = BodyMode.STREAMED
_OTHER: Final = Api.OTHER
_RESPONSES: Final = Api.RESPONSES


@mypyc_attr(free_list_len=1)
class Response:
    """One response as it passes. Its facts go into `record`, events for the fleet to `observe`."""

    def __init__(self, record: RequestRecord, observe: Observe, settings: ExchangeSettings) -> None:
        self._record = record
        self._observe = observe
        self._header_sources = settings.header_sources
        self._reporters = settings.reporters
        self._usage_reader: UsageReader | None = None
        self._usage: Usage | None = None
        self._restorer: Restorer | None = None
        # Responses API: the end of what came, b"\n" before anything; else empty.
        self._opening = b""
        self._id_reader: ResponseIdReader | None = None
        self._last = b""

    def show_wait(self) -> None:
        """Add a response header with the time that the request waited."""
        if queue_duration_header not in self._header_sources:
            self._header_sources += (queue_duration_header,)

    def headers(self, message: ResponseHeaders, now: float) -> list[Reply]:
        """Handle the response's head. A compressed body (RFC 9110 §8.4) is passed on unread."""
        headers, record = message.headers, self._record
        record.status = _status(headers.get(":status", ""))
        record.failure = _failure(record.status, headers)
        content_type = headers.get("content-type", "").lower()
        request = record.request
        api = _OTHER if request is None else request.api
        record.streaming = _EVENTS in content_type
        if request is not None and content_type.startswith(_GRPC):
            record.streaming = request.stream
            record.denied = headers.get("grpc-status", "0") != "0"
        if "content-encoding" not in headers or not content_coding(headers):
            at_top = api in _USAGE_AT_TOP
            if at_top and record.streaming:
                self._usage_reader = ObjectScanner(1, True)  # noqa: FBT003 (`lines`)
            elif at_top and content_type.startswith(_JSON):
                self._usage_reader = ObjectScanner()
            else:
                self._usage_reader = usage_reader(api, content_type, streaming=record.streaming)
            self._restorer = None if message.end_of_stream else self._restoration()
            if api is _RESPONSES:
                self._opening = b"\n"
                if record.status == _GOOD:
                    self._id_reader = _id_reader(streaming=record.streaming)
        self._report_load(headers, now)
        if message.end_of_stream:
            self._check_empty()
        return [HeadersReply(response=True, mutation=self._mutation())]

    def may_end_early(self, mode: BodyMode) -> bool:
        """Whether the proxy may pass the rest on by itself, because only the end is still unknown.

        A response that is not a stream has its usage at its end, which is a few pieces away.
        """
        record, request = self._record, self._record.request
        if record.decision is None or request is None or record.refused:
            return False
        if mode is not _STREAMED or self._restorer is not None or self._reporters:
            return False
        return request.stream or request.api is _OTHER or record.streaming

    def _restoration(self) -> Restorer | None:
        request = self._record.request
        if self._record.decision is None or request is None:
            return None
        if request.model == request.target_model or not request.model:
            return None
        if request.api in FRAMED:
            from epp.protocol.bodies.grpc_body import FrameRestorer  # noqa: PLC0415 (slow to load)

            return FrameRestorer(request.model)
        return ModelRestorer(request.model, sse=self._record.streaming)

    def _mutation(self) -> Mutation:
        added: Headers = ()
        for source in self._header_sources:
            added += source(self._record)
        if not added and self._restorer is None:
            return UNCHANGED
        # Restoring a model's name changes the body's length: RFC 9110 §8.6 wants it right or gone.
        return Mutation(
            set_headers=added,
            remove_headers=() if self._restorer is None else ("content-length",),
        )

    def _report_load(self, headers: dict[str, str], now: float) -> None:
        # ORCA: `endpoint-load-metrics` answers the request's `endpoint-load-metrics-format`.
        report, decision = headers.get("endpoint-load-metrics"), self._record.decision
        if report is None or decision is None:
            return
        served = self._record.served
        target = decision.endpoint.target if served is None else decision.served_at(served)
        event = parse_orca(report, self._record.id, target)
        if event is not None:
            self._observe(event, now)

    def body(self, message: ResponseBody, mode: BodyMode, now: float) -> list[Reply]:
        """Handle a piece of the body; return the reply to the proxy."""
        body, record = message.body, self._record
        data = body if isinstance(body, bytes) else bytes(body)
        if data:
            record.response_bytes += len(data)
            count = record.response_chunks = record.response_chunks + 1
            if not count % _PROGRESS_CHUNKS and record.first_byte_at is not None:
                self._report_progress(now)
            if self._id_reader is not None:
                self._read_id(self._id_reader, data, now)
            if record.first_byte_at is None and self._begins(data):
                self._first_byte(now)
            self._last = data
            if self._usage_reader is not None and (reports := self._usage_reader.feed(data)):
                self._usage = merge_usage(self._usage, reports)
        last = message.end_of_stream
        if last and not record.response_bytes:
            self._check_empty()
        replies = self._passed(data, mode, last=last)
        return self._reported(replies) if last and self._reporters else replies

    def _passed(self, data: bytes, mode: BodyMode, *, last: bool) -> list[Reply]:
        if mode is _DUPLEX:
            return self._next_chunks(data, last=last)
        if self._restorer is None:
            return [BodyReply(response=True)]
        restored = self._restorer.feed(data, last=last or mode in WHOLE_BODIES)
        return [BodyReply(response=True, mutation=Mutation(body=restored))]

    def _reported(self, replies: list[Reply]) -> list[Reply]:
        """Add the reported usage to the last reply of a response."""
        self.record_usage()
        usage, last = self._record.usage, replies[-1]
        if usage is None or not isinstance(last, BodyReply | Chunk | TrailersReply):
            return replies
        found = [report for each in self._reporters if (report := each(usage)) is not None]
        return [*replies[:-1], Reporting(last, tuple(found))] if found else replies

    def _next_chunks(self, data: bytes, *, last: bool) -> list[Reply]:
        if self._restorer is not None:
            data = self._restorer.feed(data, last=last)
        if len(data) > CHUNK_BYTES:
            return chunks(data, response=True, last=last)
        return [Chunk(response=True, body=data, end_of_stream=last)] if data or last else []

    def _report_progress(self, now: float) -> None:
        """Report how many chunks have come."""
        if self._record.streaming and self._record.decision is not None:
            self._observe(Generated(self._record.id, self._record.response_chunks), now)

    def _read_id(self, reader: "ResponseIdReader", data: bytes, now: float) -> None:
        """Report the id of the response, once it has come."""
        found = reader.feed(data)
        if reader.done:
            self._id_reader = None
        if found and self._record.decision is not None:
            self._observe(ResponseNamed(self._record.id, found), now)

    def _begins(self, data: bytes) -> bool:
        """Whether a piece has the first generated output; it may be an error instead."""
        record = self._record
        if not record.streaming:
            return True
        if record.refused:
            return False
        if self._opening:
            return self._has_output(data)
        if data.startswith(_ERRORS):
            record.denied = True
            record.failure = Failure.ERROR if _SERVERS_OWN.search(data) else None
            return False
        # WHATWG HTML §9.2.6: such a line is a comment, which keeps the connection alive.
        return data[:1] != b":" or _DATA in data

    def _has_output(self, data: bytes) -> bool:
        """Whether anything came after the opening events of a stream of the Responses API."""
        seen = self._opening + data
        unnamed = self._opening == b"\n" and data[:6] != b"event:"[: len(data)]
        self._opening = seen[-_LONGEST_NAME:]
        return unnamed or _OUTPUT.search(seen) is not None

    def _first_byte(self, now: float) -> None:
        self._record.first_byte_at = now
        if self._record.streaming and self._record.decision is not None:
            self._observe(FirstToken(self._record.id), now)

    def tokens(self, count: int, now: float) -> None:
        """Record that `count` tokens were generated by now; for drivers that see no bytes."""
        record = self._record
        before, record.response_chunks = record.response_chunks, max(record.response_chunks, count)
        record.streaming = True
        if record.first_byte_at is None:
            self._first_byte(now)
        elif count // _PROGRESS_CHUNKS > before // _PROGRESS_CHUNKS:
            self._report_progress(now)

    def report_usage(self, report: bytes) -> None:
        """Read a `usage` object (JSON) that a driver got separately from the body."""
        self._usage = merge_usage(self._usage, (report,))

    def trailers(self, mode: BodyMode) -> list[Reply]:
        """Handle trailers, which end the response."""
        replies: list[Reply] = []
        if mode is not _NONE and not self._record.response_bytes:
            self._check_empty()
            request = self._record.request
            # Trailers are not shown; a good answer has a message before them.
            self._record.denied = request is not None and request.api in FRAMED
        if self._restorer is not None and mode is _DUPLEX:
            held = self._restorer.feed(b"", last=True)
            replies += chunks(held, response=True, last=False) if held else []
        replies.append(TrailersReply(response=True))
        return self._reported(replies) if self._reporters else replies

    def _check_empty(self) -> None:
        """Record a failure if a good response that has ended without a body should have one."""
        record, request = self._record, self._record.request
        asked = record.request_bytes and request is not None and request.api in _GENERATING
        if asked and record.status == _GOOD and record.failure is None:
            record.failure = Failure.EMPTY

    @property
    def done(self) -> bool:
        """Whether the last event of a stream has come: clients may leave before its end."""
        return self._last.endswith(_DONE)

    @property
    def ended(self) -> bool:
        """Whether the whole response was seen; gRPC's trailers may not be shown.

        gRPC has no other end. Envoy only shows trailers with `response_trailer_mode: SEND`.
        """
        reader = self._usage_reader
        return self.done or (isinstance(reader, FramedUsage) and reader.ended)

    def record_usage(self) -> None:
        """Write the usage that was found in the body into the record."""
        if self._usage_reader is not None:
            self._usage = merge_usage(self._usage, self._usage_reader.end())
        self._record.usage = self._usage


def was_retried(message: Message) -> bool:
    """Whether the proxy says that it tried more than once."""
    return isinstance(message, ResponseHeaders) and message.headers.get(ATTEMPTS, "1") != "1"


def _id_reader(*, streaming: bool) -> "ResponseIdReader":
    from epp.protocol.response_ids import ResponseIdReader  # noqa: PLC0415 (slow to load, often unused)

    return ResponseIdReader(streaming=streaming)


def _status(text: str) -> int:
    """Return an HTTP status; 0 if it is not valid (RFC 9110 §15: three digits)."""
    return int(text) if len(text) == 3 and text.isascii() and text.isdigit() else 0  # noqa: PLR2004


def _failure(status: int, headers: dict[str, str]) -> Failure | None:
    """Return how the endpoint failed, according to the head of the response."""
    if status == _GOOD:
        failure = _GRPC_STATUSES.get(headers.get("grpc-status", ""))
        return None if failure is None or _OVERLOADED in headers else failure
    if _OVERLOADED in headers:
        return None
    if status == _TOO_MANY or (status == _UNAVAILABLE and _RETRY_AFTER in headers):
        return Failure.BUSY
    if status < _SERVER_ERROR:
        return None
    return Failure.GATEWAY if status in _GATEWAY_STATUSES else Failure.ERROR
