"""The request half of an exchange: what is read of it, and what passes on to the model server.

The body is held until somebody has decided where it goes; then it passes on as it came, but for a
model's name under a rewrite. In full duplex the picker sends it on itself, no faster than the
proxy reads.
"""

from typing import Final

import msgspec

from epp.errors import BodyTooLarge, MalformedRequest
from epp.model.request import Api, Decision, InferenceRequest
from epp.protocol.extproc.headers import RequestFacts, request_mutation
from epp.protocol.extproc.messages import (
    UNSEEN_BODIES,
    WHOLE_BODIES,
    BodyMode,
    BodyReply,
    HeadersReply,
    Modes,
    Mutation,
    Reply,
    RequestBody,
    RequestHeaders,
    TrailersReply,
    next_chunks,
)
from epp.protocol.extproc.record import RequestRecord
from epp.protocol.extproc.settings import ExchangeSettings
from epp.protocol.openai.body import Body
from epp.protocol.openai.request_json import Parsed

# Looked up once: docs/adr/0013-compiled.md says why.
_DUPLEX: Final = BodyMode.FULL_DUPLEX_STREAMED
_OTHER: Final = Api.OTHER


class Request:
    """One request as it passes. Facts go into `record`; `ended`: its end was seen.

    `modes` are what the proxy announced, or what is assumed of one that announces nothing.
    """

    __slots__ = (
        "_body",
        "_early",
        "_facts",
        "_parsed",
        "_record",
        "_rest",
        "_settings",
        "_trailed",
        "ended",
        "modes",
    )

    def __init__(self, record: RequestRecord, settings: ExchangeSettings) -> None:
        self.modes = Modes()
        self.ended = False
        self._record = record
        self._settings = settings
        self._facts = RequestFacts()
        self._parsed: Parsed | None = None
        self._body: Body | None = None  # while it is to be read
        self._rest: list[bytes] = []  # pieces of it that are to go on
        self._early = False  # decided at the headers, the body unseen
        self._trailed = False  # the end was trailers

    @property
    def duplex(self) -> bool:
        """Whether the picker itself sends the body on."""
        return self.modes.request is _DUPLEX

    @property
    def begun(self) -> bool:
        """Whether there was a head."""
        return bool(self._facts.method)

    @property
    def complete(self) -> bool:
        """Whether no more of the body is to come before a decision."""
        return self.ended or self.modes.request in WHOLE_BODIES

    @property
    def has_more(self) -> bool:
        """Whether more of a long body is to go on."""
        return bool(self._rest)

    @property
    def passed(self) -> bool:
        """Whether the model server has, or gets without the picker, all of it."""
        return (self.ended and not self._rest) or not self.duplex

    # What comes.

    def headers(self, message: RequestHeaders) -> bool:
        """Take the head; return whether there is nothing more to wait for.

        Raises `MalformedRequest` where a body is missing.
        """
        self._facts = RequestFacts.of(message.headers)
        if message.end_of_stream:
            if self._facts.api is not _OTHER and self._facts.method == "POST":
                raise MalformedRequest("the body is empty; JSON is expected", reason="empty-body")
            self.ended = True
        opaque = self.duplex and self._facts.api is _OTHER
        self._early = message.end_of_stream or opaque or self.modes.request in UNSEEN_BODIES
        if not self._early:
            self._body = Body(self._facts.api)
        return self._early

    def body(self, message: RequestBody, *, answered: bool) -> list[Reply]:
        """Take a piece of the body; where it is `answered`, return what goes on of it.

        Raises `BodyTooLarge`.
        """
        if self.ended:
            return []  # Envoy 1.35-1.37 ends a long body twice
        self._record.request_bytes += len(message.body)
        self.ended = message.end_of_stream
        if answered:
            self._rest.append(message.body)
            return self.next_chunks() if len(self._rest) == 1 else []
        if self._record.request_bytes > self._settings.max_body_bytes:
            limit = self._settings.max_body_bytes
            raise BodyTooLarge(f"the body is larger than {limit} bytes, the picker's limit")
        if self._body is None:
            self._rest.append(message.body)
        else:
            self._body.feed(message.body)
        return []

    def trailers(self, *, answered: bool) -> list[Reply]:
        """Take the end of a request that ends with trailers; pass them on where it may be."""
        self.ended = self._trailed = True
        return [TrailersReply(response=False)] if answered and not self._rest else []

    # What is read of it.

    def read(self, subset: tuple[str, ...] | None) -> InferenceRequest:
        """Put together what routing depends on. Raises `MalformedRequest`."""
        kept = b""
        if self._body is not None:
            self._rest = self._body.pieces
            self._parsed = self._parse(self._body)
            if self._parsed is not None and self._settings.keep_body:
                kept = self._body.whole()
        return self._facts.request(self._record.id, self._parsed, subset, kept)

    def _parse(self, body: Body) -> Parsed | None:
        if self._facts.api is _OTHER:
            return None
        try:
            return body.parse()
        except MalformedRequest:
            if self.modes.request is BodyMode.BUFFERED_PARTIAL:
                return None  # the proxy cut it, not the client
            raise

    # What goes on.

    def answer(self, decision: Decision, target: str) -> list[Reply]:
        """Send it where was decided; `target` is the model it is to name, empty for its own."""
        length = self._rewrite(target)
        mutation = request_mutation(
            self._facts,
            decision,
            self._record.id,
            orca=self._settings.request_orca,
            content_length=length,
        )
        if not self.duplex and not self._early:
            return self._let_go(mutation, renamed=length is not None)
        replies: list[Reply] = [HeadersReply(response=False, mutation=mutation)]
        if self._rest:
            return replies + self.next_chunks()
        return [*replies, TrailersReply(response=False)] if self._trailed else replies

    def _rewrite(self, target: str) -> int | None:
        """Put the target model into the held body; return its new length where that changed it."""
        body, self._body = self._body, None
        if self._parsed is None or not target:
            return None
        if body is not None:
            self._rest = body.renamed(target)
        return sum(map(len, self._rest))

    def _let_go(self, mutation: Mutation, *, renamed: bool) -> list[Reply]:
        """Answer a body that the proxy holds whole."""
        pieces, self._rest = self._rest, []
        if renamed:
            mutation = msgspec.structs.replace(mutation, body=b"".join(pieces))
        replies: list[Reply] = [BodyReply(response=False, mutation=mutation)]
        return [*replies, TrailersReply(response=False)] if self._trailed else replies

    def next_chunks(self) -> list[Reply]:
        """Let the pieces that are held go on, as many as are taken at once."""
        pieces = self._rest
        if not self.duplex:
            self._rest = []
            return [BodyReply(response=False) for _ in pieces]
        replies, self._rest = next_chunks(pieces, last=self.ended and not self._trailed)
        if self._trailed and not self._rest:
            replies.append(TrailersReply(response=False))
        return replies

    def close(self) -> None:
        """Forget what was held."""
        self._body, self._rest = None, []
