"""Notes of requests, taken on the event loop, and the lines that a thread makes from them."""

import msgspec

from epp.model.quote import Quote
from epp.model.request import DEFAULT_FAIRNESS_ID, InferenceRequest, RequestId, Usage
from epp.protocol.extproc.record import Outcome, RequestRecord
from epp.protocol.recording import PromptWriter, Pseudonyms, RecordedPrompt, RecordedRequest
from epp.values import replaced

_DIGITS = 6
"""Decimals of seconds: microseconds."""
_UNREAD = InferenceRequest(id=RequestId(""))
"""Stands for a request whose body was not read."""
_UNKNOWN = Usage()


class Destination(msgspec.Struct, frozen=True, gc=False):
    """The parts of a decision that are recorded; a note must not keep the rest in memory."""

    endpoint: str = ""
    prefill: str = ""
    profile: str = ""
    served: str = ""
    predicted_cached_tokens: int | None = None
    predicted_ttft: float | None = None


class Note(msgspec.Struct, frozen=True, gc=False):
    """One ended request, from its `RequestRecord`, without text.

    Times are in seconds of the picker's clock, None if the request did not get that far.
    """

    quote: Quote | None
    """Its prompts as hashes; None if it was not quoted."""
    request: InferenceRequest
    """The request."""
    destination: Destination
    """Where it was sent, and the predictions."""
    usage: Usage
    """The tokens that the model server reported."""
    outcome: Outcome | None
    """How it ended; None if that is not known."""
    received_at: float
    """When its first bytes came."""
    decided_at: float | None
    """When its endpoint was picked."""
    first_byte_at: float | None
    """When the first bytes of a streamed response came."""
    finished_at: float | None
    """When the response ended."""
    chunks: int
    """Chunks of the response."""
    status: int | None
    """The HTTP status; None if there was none."""
    reason: str
    """Why it was refused; empty if it was not."""


_NOWHERE = Destination()


def note_of(record: RequestRecord, quote: Quote | None) -> Note:
    """Return the note of a request."""
    request, decision, error = record.request or _UNREAD, record.decision, record.error
    if decision is None:
        destination = _NOWHERE
        if request.prompts or request.body:
            request = replaced(request, prompts=(), body=b"")
    else:
        prefill, served = decision.prefill, record.served
        destination = Destination(
            decision.endpoint.id,
            "" if prefill is None else prefill.id,
            decision.profile,
            served if served is not None and record.elsewhere else "",
            decision.predicted_cached_tokens,
            decision.predicted_ttft,
        )
    return Note(
        quote,
        request,
        destination,
        record.usage or _UNKNOWN,
        record.outcome,
        record.received_at,
        record.decided_at,
        record.first_byte_at,
        record.finished_at,
        record.response_chunks,
        record.status,
        "" if error is None else error.reason,
    )


class LineWriter:
    """Makes lines of notes: numbers requests from 1, and keys what could be looked up.

    Times in lines count from `began`.
    """

    def __init__(self, key: bytes, began: float) -> None:
        self._pseudonyms = Pseudonyms(key)
        self._prompts = PromptWriter(self._pseudonyms)
        self._began = began
        self._requests = 0

    def begin_part(self) -> None:
        """Refer to nothing that was written before."""
        self._prompts = PromptWriter(self._pseudonyms)

    def line(self, note: Note) -> RecordedRequest:
        """Return the line of a request."""
        request, to, at, usage = note.request, note.destination, note.received_at, note.usage
        tenant = request.fairness_id
        self._requests += 1
        return RecordedRequest(
            n=self._requests,
            at=round(at - self._began, _DIGITS),
            outcome="" if note.outcome is None else note.outcome.value,
            api=request.api.value,
            model=request.model,
            target_model="" if request.target_model == request.model else request.target_model,
            tenant="" if tenant == DEFAULT_FAIRNESS_ID else self._pseudonyms.word(tenant),
            priority=request.priority,
            stream=request.stream,
            max_tokens=request.max_tokens,
            prompts=self._written(note.quote),
            endpoint=to.endpoint,
            prefill=to.prefill,
            served=to.served,
            profile=to.profile,
            predicted_cached_tokens=to.predicted_cached_tokens,
            predicted_ttft=_since(to.predicted_ttft, 0.0),
            decided=_since(note.decided_at, at),
            first=_since(note.first_byte_at, at),
            end=_since(note.finished_at, at),
            chunks=note.chunks,
            status=note.status,
            reason=note.reason,
            prompt_tokens=usage.prompt_tokens or None,
            cached_tokens=usage.cached_tokens,
            generated_tokens=usage.completion_tokens or None,
        )

    def _written(self, quote: Quote | None) -> tuple[RecordedPrompt, ...]:
        if quote is None:
            return ()
        return tuple(
            self._prompts.written(chain, offsets.total)
            for chain, offsets in zip(quote.chains, quote.token_offsets, strict=True)
        )


def _since(seconds: float | None, start: float) -> float | None:
    return None if seconds is None else round(seconds - start, _DIGITS)
