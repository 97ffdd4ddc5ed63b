"""The ledger of one endpoint: requests that were sent and have not ended, and their prefill.

Prefills are assumed to run one after the other, in the order in which they were sent: vLLM computes
prompts first come, first served. Each ends when its first token is seen. If that is not seen, it
ends by a virtual clock: the head of the queue runs for as many seconds as were predicted, from the
moment it became the head.
"""

from math import exp, inf
from typing import Final

from mypy_extensions import mypyc_attr

from epp.model.request import RequestId

OVERDUE_SECONDS: Final = 60.0
"""Seconds past its prediction after which a prefill without a first token counts as over."""

_BUSY_SECONDS: Final = 10.0
"""The time constant over which the busy share is averaged."""
_REFUSALS: Final = 5
"""This many errors or shed requests in a row, with no response begun, show that it refuses."""
_REFUSES_SECONDS: Final = 1.0
"""Seconds between two requests that test whether an endpoint still refuses."""
_SPAN_SECONDS: Final = 0.25
"""The fewest seconds of prefills, predicted or taken, that make a measurement."""
_STEP_SECONDS: Final = 0.005
"""Seconds between two steps, at least: the first tokens of one step come closer together."""
_MIN_SECONDS: Final = 1e-9
"""The least queued seconds while any prefill is not over."""


@mypyc_attr(free_list_len=1, acyclic=True)
class _Prefill:
    """A predicted prefill of a request; `deadline_only`: its first token will not be seen.

    `beside` is the part of its `seconds` that decodes in the same steps take.
    """

    def __init__(  # noqa: PLR0913 (what is known of it)
        self,
        request: RequestId,
        seconds: float,
        beside: float,
        expected: float,
        tokens: int,
        *,
        deadline_only: bool,
    ) -> None:
        self.request = request
        self.seconds = seconds
        self.beside = beside
        self.expected = expected
        self.tokens = tokens
        self.deadline_only = deadline_only

    @property
    def grace(self) -> float:
        """Seconds past its prediction after which it counts as over."""
        return 0.0 if self.deadline_only else OVERDUE_SECONDS


class Ledger:
    """The requests at one endpoint. Times are seconds of the caller's clock, which never goes back.

    At the last scrape, `running` requests of all senders ran there, and `external_waiting` requests
    of other senders waited. `queued_tokens` counts the tokens of prefills that were not over at the
    last call with a time. `sent` counts all requests ever sent. `begun` counts the responses that
    have begun; a response that comes whole begins as it ends. The engine was last asleep at
    `slept_at`; nothing is learned from the times of requests that were sent before.

    An endpoint that answers with errors at once, or sheds load, is always free, and would get all
    waiting requests. So after `_REFUSALS` such answers in a row it refuses until `refuses_until`: a
    second after the last one, or after the last request that tested it. An endpoint in doubt gets
    `_REFUSALS` requests within a second.
    """

    def __init__(self) -> None:
        self.external_waiting = 0.0
        self.running = 0.0
        self.queued_tokens = 0
        self.sent = 0
        self.begun = 0
        self.slept_at = -inf
        self.refuses_until = -inf
        self._refusals = 0  # in a row
        self._doubted = False
        self._prefills: dict[RequestId, _Prefill] = {}  # in the order of the queue
        self._queued_seconds = 0.0
        self._head: _Prefill | None = None  # the first of them
        self._head_since = 0.0
        self._requests: set[RequestId] = set()
        self._elsewhere: set[RequestId] = set()
        # What was measured since the queue was empty, or since the last span.
        self._span_expected = self._span_seconds = self._span_beside = 0.0
        self._span_measured = True

    @property
    def requests(self) -> int:
        """How many requests were sent and have not ended."""
        return len(self._requests)

    @property
    def request_ids(self) -> set[RequestId]:
        """The requests that were sent and have not ended."""
        return set(self._requests)

    @property
    def refuses(self) -> bool:
        """Whether its last answers were all errors, so that it gets single requests as tests."""
        return self._refusals >= _REFUSALS

    def count_prefilling(self, now: float) -> int:
        """Count the requests whose prefill is not over, here or elsewhere."""
        self._advance(now)
        return len(self._prefills) + len(self._elsewhere)

    def queued_seconds(self, now: float) -> float:
        """Return the seconds of prefill that are left: above 0 while any prefill is not over."""
        self._advance(now)
        head = self._head
        if head is None:
            return 0.0
        done = min(head.seconds, max(0.0, now - self._head_since))
        # The head may take longer than predicted, and sums of floats may fall short.
        return max(_MIN_SECONDS, self._queued_seconds - done)

    def reaches(self, request: RequestId, seconds: float, now: float) -> bool:
        """Return whether less than `seconds` of prefill are queued before a request.

        Nothing is queued before a request whose own prefill is over.
        """
        self._advance(now)
        entry = self._prefills.get(request)
        if entry is None:
            return seconds > 0
        # While the head takes longer than predicted, those behind it make no progress.
        before, done = 0.0, max(0.0, now - self._head_since)
        if self._head is not None:
            done = min(done, self._head.seconds)
        for other in self._prefills.values():
            if other is entry or before - done >= seconds:
                break
            before += other.seconds
        return max(0.0, before - done) < seconds

    def prefilled_share(self, request: RequestId, now: float) -> float:
        """Return the share of a request's prefill that is done, in 0..1."""
        self._advance(now)
        entry = self._prefills.get(request)
        if entry is None:
            return 1.0
        done = max(0.0, now - self._head_since) if entry is self._head else 0.0
        return done / entry.seconds if done < entry.seconds else 1.0

    def overdue(self, now: float) -> tuple[float, float] | None:
        """Return when the head of the queue should have ended, and its predicted seconds.

        None if it is not late, or if its first token will not be seen.
        """
        self._advance(now)
        head = self._head
        if head is None:
            return None
        due = self._head_since + head.seconds
        return None if now < due else (due, head.seconds)

    def admit(  # noqa: PLR0913 (what is known of one prefill)
        self,
        request: RequestId,
        seconds: float,
        now: float,
        *,
        observed: bool,
        tokens: int = 0,
        beside: float = 0.0,
        slowness: float = 1.0,
        delayed: bool = False,
    ) -> None:
        """Add a request with `seconds` of prefill, of `tokens` tokens that are not cached.

        `beside` is the part of these seconds that decodes in the same steps take. `observed`: its
        first token will be seen. The endpoint takes `slowness` times as long as its class predicted
        at first. A `delayed` prefill may begin after its turn, or take longer than predicted, so
        nothing is learned from its time, or from those queued with it. No request is added twice.
        """
        self._advance(now)
        if not self._prefills:
            self._head_since = now
            self._queued_seconds = 0.0
            self._span_expected = self._span_seconds = self._span_beside = 0.0
            self._span_measured = True
        if delayed:
            self._span_measured = False
        entry = _Prefill(
            request, seconds, beside, seconds / slowness, tokens, deadline_only=not observed
        )
        if self._head is None:
            self._head = entry
        self._prefills[request] = entry
        self._queued_seconds += seconds
        self.queued_tokens += tokens
        self._count(request, now)

    def _count(self, request: RequestId, now: float) -> None:
        self._requests.add(request)
        self.sent += 1
        if self.refuses or (self._doubted and self.sent == _REFUSALS):
            self.refuses_until = now + _REFUSES_SECONDS

    def doubt(self) -> None:
        """Assume that an endpoint that was sent no request yet may refuse, until it responds."""
        self._doubted = True

    def record_refusal(self, now: float) -> None:
        """Record that the endpoint answered a request with an error, or shed it."""
        self._refusals += 1
        if self.refuses:
            self.refuses_until = now + _REFUSES_SECONDS

    def record_begin(self) -> None:
        """Count a response that has begun."""
        self.begun += 1
        self._refusals, self._doubted, self.refuses_until = 0, False, -inf

    def record_sleep(self, now: float) -> None:
        """Record that the engine sleeps, or has slept until now."""
        self.slept_at = now
        self._span_measured = False

    def admit_decode(self, request: RequestId, now: float) -> None:
        """Add a request whose prefill another endpoint computes."""
        self._elsewhere.add(request)
        self._count(request, now)

    def record_first_token(self, request: RequestId, now: float) -> tuple[float, float] | None:
        """End a request's prefill, if any; return a measurement if this ends a span of prefills.

        A measurement is the seconds that the class first predicted for the span, and those that it
        took. If the queue is then empty, the span ends with this prefill. Otherwise it ends before
        this prefill, after a quarter of a second: prompts of one step end together, so a span ends
        with a step. Nothing is learned from a span that took less than the decodes beside it.
        """
        self._advance(now)
        self.record_begin()
        entry, span = self._prefills.get(request), None
        if len(self._prefills) > 1 and now - self._head_since > _STEP_SECONDS:
            span = self._end_span(_SPAN_SECONDS)
        if entry is not None and self._span_measured:
            self._span_expected += entry.expected
            self._span_beside += entry.beside
            if entry is self._head:
                self._span_seconds += now - self._head_since
        self._drop(request, now)
        return span if self._prefills else self._end_span(0.0)

    def _end_span(self, least: float) -> tuple[float, float] | None:
        """Return the measurement, if it has at least this many seconds; begin a new one."""
        expected, seconds, beside = self._span_expected, self._span_seconds, self._span_beside
        if not expected or max(expected, seconds) < least:
            return None
        self._span_expected = self._span_seconds = self._span_beside = 0.0
        return (expected, seconds) if seconds > beside else None

    def _drop(self, request: RequestId, now: float) -> None:
        """End a request's prefill without a measurement, once the clock was advanced to `now`."""
        entry = self._prefills.get(request)
        if entry is not None:
            self._remove(entry)
            if entry is self._head:
                self._head = self._first()
                self._head_since = now
        elif self._elsewhere:
            self._elsewhere.discard(request)

    def mark_unobserved(self, request: RequestId) -> None:
        """End a request's prefill by the clock alone: its first token will not be seen."""
        if request in self._prefills:
            self._prefills[request].deadline_only = True

    def delay(self, request: RequestId) -> None:
        """End a request's prefill by the clock, unmeasured, as it may begin after its turn."""
        if request in self._prefills:
            self._prefills[request].deadline_only = True
            self._span_measured = False

    def end(self, request: RequestId, now: float) -> None:
        """Remove a request and its prefill."""
        self._advance(now)
        self._drop(request, now)
        self._requests.discard(request)

    def _first(self) -> _Prefill | None:
        for entry in self._prefills.values():
            return entry
        return None

    def _remove(self, entry: _Prefill) -> None:
        del self._prefills[entry.request]
        self._queued_seconds = max(0.0, self._queued_seconds - entry.seconds)
        self.queued_tokens -= entry.tokens

    def _advance(self, now: float) -> None:
        head = self._head
        if head is None or now < self._head_since + head.seconds + head.grace:
            return
        ended, since = [], self._head_since
        for entry in self._prefills.values():
            over = since + entry.seconds + entry.grace
            if now < over:
                break
            ended.append(entry)
            since = over
        for entry in ended:
            self._remove(entry)
        # A dict skips all removed entries to find its first: once for all of them.
        self._head = self._first()
        self._head_since = since
        self._span_measured = False  # neither their ends nor the next one's beginning are known


class BusyShare:
    """The share of endpoints with prefill to do, in 0..1: an average over some seconds."""

    def __init__(self) -> None:
        self.value = 0.0
        self._at = 0.0

    def update(self, busy: int, asked: int, now: float) -> None:
        """Add to the average that `busy` of `asked` endpoints have prefill to do, at `now`."""
        if asked:
            gain = 1.0 - exp(-max(0.0, now - self._at) / _BUSY_SECONDS)
            self.value += gain * (busy / asked - self.value)
            self._at = now
