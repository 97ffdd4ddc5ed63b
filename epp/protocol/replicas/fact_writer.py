"""The writer: what this replica sees of its requests, as messages to all others.

Events are kept in a list until a message is due, so that a request pays for nothing but an entry
of the list.
"""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, Final

import msgspec

from epp.model.endpoint import Endpoint, EndpointId, Target
from epp.model.events import Ejected, Event, Returned
from epp.model.kv_changes import CacheCleared
from epp.model.learning.bounded import make_room
from epp.model.prompts.repeated import ResponseRepeated
from epp.model.request import RequestId
from epp.model.request_events import (
    Aborted,
    Admitted,
    Failure,
    Finished,
    FirstToken,
    Generated,
    ResponseNamed,
    Served,
    Unobserved,
)
from epp.protocol.replicas.chains import KnownChains, write_prompt, written_words
from epp.protocol.replicas.epochs import engine_epoch
from epp.protocol.replicas.facts import (
    LARGEST,
    AbortedFact,
    AdmittedFact,
    AnyFact,
    ChainQuery,
    ChainReply,
    ClearedFact,
    EjectedFact,
    FinishedFact,
    FirstTokenFact,
    GeneratedFact,
    HeartbeatFact,
    InFlightReply,
    NamedFact,
    RepeatedFact,
    ReturnedFact,
    ServedFact,
    UnobservedFact,
)
from epp.protocol.replicas.messages import write_message
from epp.protocol.replicas.requests_of_peer import digest_of

_ENDS: Final = frozenset((Finished, Aborted, Unobserved))
_SERVED_SECONDS: Final = 1.0
"""Seconds between two facts that the proxy served a request where it was sent.

Such facts only show that the proxy reports where it served requests."""
_MAX_EPOCHS: Final = 4096
"""The most endpoints whose epochs are kept: new pods never have the names of removed ones."""
_MAX_FACTS: Final = 64
_MAX_BYTES: Final = 256 << 10
"""The most facts of a message, which take a millisecond, and bytes of hashes, one fact aside."""


class FactWriter:
    """Writes the messages of one replica.

    `pool` is a keyed hash of the pool's name, `own` the number that this replica drew.
    `endpoint_of` returns an endpoint by its id, None for an unknown one; `admission_of` returns how
    a request in flight was admitted, None if it is not. `known` has the chains that were sent or
    received. `warm`: this replica has started. `settled`: it knows as much of caches as the others.
    `full`: it forgets some of that. `due` is called when the first event since the last message is
    noted. While it is `applying` events of other replicas, no event is noted: their sender sends
    them to all.
    """

    def __init__(
        self,
        pool: bytes,
        own: int,
        endpoint_of: Callable[[EndpointId], Endpoint | None],
        admission_of: Callable[[RequestId], Admitted | None],
        due: Callable[[], None] = lambda: None,
    ) -> None:
        self.written = 0
        self.warm = self.settled = self.full = self.applying = False
        self.pool: Final = pool
        self.own: Final = own
        self.known: Final = KnownChains()
        self._endpoint_of: Final = endpoint_of
        self._admission_of: Final = admission_of
        self._due: Final = due
        self._noted: list[Event] = []
        self._since = 0.0
        self._sequence = 0
        self._numbers: dict[RequestId, int] = {}
        self._sent_to: dict[RequestId, Target] = {}  # as the other replicas know it
        self._served_since = -inf
        self._moved: AdmittedFact | None = None
        self._next = 0
        self._epochs: dict[EndpointId, tuple[Endpoint, int]] = {}

    def note(self, event: Event, now: float, guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        """Keep an event to be sent.

        A guess of the fleet is not sent, unless it ends a request that others believe in flight.
        """
        if self.applying:
            return
        if guessed and (type(event) is not Aborted or event.request_id not in self._numbers):
            return
        self._noted.append(event)
        if len(self._noted) == 1:
            self._since = now
            self._due()

    def messages(self) -> Iterator[bytes]:
        """Write what was noted, as messages to all."""
        noted, self._noted = self._noted, []
        facts: list[AnyFact] = []
        size = 0
        for event in noted:
            fact = _WRITERS[type(event)](self, event)
            if fact is None:
                continue
            facts.append(fact)
            if self._moved is not None:
                facts.append(self._moved)
                self._moved = None
            if type(fact) is AdmittedFact:
                size += sum([len(each.hashes) for each in fact.prompts])
            if size >= _MAX_BYTES or len(facts) >= _MAX_FACTS:
                yield self.to_all(facts, self._since)
                facts, size = [], 0
        if facts:
            yield self.to_all(facts, self._since)

    def skip(self) -> None:
        """Drop what was noted: there is no other replica."""
        noted, self._noted = self._noted, []
        for event in noted:
            if type(event) is Admitted:
                self._number(event.quote.request_id)
            elif type(event) is Served and event.request_id in self._sent_to:
                self._served(event)  # one that moves gets a new number, by which others miss it
                self._moved = None
            elif type(event) in _ENDS:
                self._end(event.request_id)  # type: ignore[union-attr]  # ends have it

    def to_all(self, facts: Sequence[AnyFact], since: float) -> bytes:
        """Write a message to all."""
        self._sequence += 1
        self.written += len(facts)
        return self._written(self._sequence, facts, since)

    def to_one(self, facts: Sequence[AnyFact], now: float) -> bytes:
        """Write an answer."""
        return self._written(0, facts, now)

    def _written(self, sequence: int, facts: Sequence[AnyFact], at: float) -> bytes:
        try:
            return write_message(self.pool, self.own, sequence, at, facts)
        except (OverflowError, UnicodeError):  # what a client sent is in one of them
            facts = [each for each in facts if _can_be_written(each)]
            return write_message(self.pool, self.own, sequence, at, facts)

    # Answers.

    def heartbeat(self, now: float) -> HeartbeatFact:
        """Return a sign of life, which shows whether others know all requests in flight."""
        numbers = self._numbers.values()
        return HeartbeatFact(now, len(numbers), digest_of(numbers), self.settled, self.full)

    def in_flight(self) -> InFlightReply:
        """Return the numbers of all requests in flight that are observed."""
        return InFlightReply(list(self._numbers.values()), self._next)

    def admissions(self, numbers: Sequence[int]) -> Iterator[AdmittedFact]:
        """Yield these requests once more, as far as they are still in flight."""
        wanted = set(numbers)
        for request, number in list(self._numbers.items()):
            if number in wanted and (admitted := self._admission_of(request)) is not None:
                fact = self._admitted(admitted, number)
                if fact is not None:
                    yield fact

    def chain(self, wanted: ChainQuery) -> ChainReply:
        """Return a chain in full."""
        found = self.known.find(wanted.tip, wanted.blocks)
        return ChainReply(
            wanted.tip, None if found is None else write_prompt(*found, KnownChains())
        )

    # Facts.

    def _number(self, request: RequestId) -> int:
        self._next = number = self._next + 1
        self._numbers[request] = number
        return number

    def _end(self, request: RequestId) -> int | None:
        self._sent_to.pop(request, None)
        return self._numbers.pop(request, None)

    def engine(self, endpoint_id: EndpointId) -> tuple[Endpoint, int] | None:
        """Return an endpoint and its epoch (`engine_epoch`); None for an unknown one."""
        endpoint = self._endpoint_of(endpoint_id)
        if endpoint is None:
            return None
        known = self._epochs.get(endpoint_id)
        if known is None or known[0] is not endpoint:
            make_room(self._epochs, _MAX_EPOCHS)
            known = self._epochs[endpoint_id] = endpoint, engine_epoch(endpoint)
        return known

    def _admission(self, event: Admitted) -> AdmittedFact | None:
        return self._admitted(event, self._number(event.quote.request_id))

    def _admitted(self, event: Admitted, number: int) -> AdmittedFact | None:
        quote, known = event.quote, self.known
        engine = self.engine(event.endpoint_id)
        if engine is None:
            return None
        self._sent_to[quote.request_id] = engine[0].target
        return AdmittedFact(
            number,
            quote.request_id,
            event.endpoint_id,
            engine[1],
            quote.target_model,
            quote.api,
            [
                write_prompt(chain, quote.token_offsets[position], known)
                for position, chain in enumerate(quote.chains)
            ],
            quote.stream,
            None if quote.max_tokens is None else _bounded(quote.max_tokens),
            quote.kind,
            event.prefill_endpoint_id,
            event.encode_endpoint_id,
            quote.answers // max(1, len(quote.chains)),
        )

    def _served(self, event: Served) -> AnyFact | None:
        number = self._numbers.get(event.request_id)
        if number is None:
            return None
        if self._sent_to.get(event.request_id) == event.target:
            if self._since < self._served_since + _SERVED_SECONDS:
                return None
            self._served_since = self._since
        else:
            self._moved = self._moved_to(event.target, event.request_id)
        self._sent_to[event.request_id] = event.target
        return ServedFact(number, event.target, event.retried)

    def _moved_to(self, target: Target, request: RequestId) -> AdmittedFact | None:
        """Return a request that is served at another target, under a new number.

        A replica that misses it then notices that, as for any new request.
        """
        admitted = self._admission_of(request)
        engine = None if admitted is None else self.engine(admitted.endpoint_id)
        if admitted is None or engine is None or engine[0].target != target:
            return None  # it has ended, or no endpoint has that target
        return self._admitted(admitted, self._number(request))

    def _of_request(self, event: Any) -> AnyFact | None:  # noqa: ANN401 (each has its request's id)
        kind, request = type(event), event.request_id
        number = self._end(request) if kind in _ENDS else self._numbers.get(request)
        return None if number is None else _FACTS[kind](number, event)

    def _ejected(self, event: Ejected) -> AnyFact:
        return EjectedFact(event.endpoint_id, event.reason, event.seconds)

    def _returned(self, event: Returned) -> AnyFact:
        return ReturnedFact(event.endpoint_id)

    def _cleared(self, event: CacheCleared) -> AnyFact | None:
        engine = self.engine(event.endpoint_id)
        return None if engine is None else ClearedFact(event.endpoint_id, engine[1])

    def _repeated(self, event: ResponseRepeated) -> AnyFact:
        hashes = written_words(event.hashes)
        return RepeatedFact(event.request_id, event.anchor, hashes, list(event.sizes))


def _bounded(count: int) -> int:
    """Return a count that clients or servers gave, within what is read."""
    return min(max(count, 0), LARGEST)


def _can_be_written(fact: AnyFact) -> bool:
    try:
        msgspec.msgpack.encode(fact)
    except (OverflowError, UnicodeError):
        return False
    return True


def _finished(number: int, event: Finished) -> AnyFact:
    generated, usage = _bounded(event.generated), event.usage
    if usage is None:
        return FinishedFact(number, generated)
    cached = usage.cached_tokens
    return FinishedFact(
        number,
        generated,
        True,  # noqa: FBT003 (`reported`)
        _bounded(usage.prompt_tokens),
        _bounded(usage.completion_tokens),
        None if cached is None else _bounded(cached),
        usage.implausible,
    )


def _aborted(number: int, event: Aborted) -> AnyFact:
    busy = event.failure is Failure.BUSY
    return AbortedFact(
        number,
        _bounded(event.generated),
        event.refused,
        None if busy else event.failure,
        event.served,
        None if event.computed is None else _bounded(event.computed),
        busy,
    )


_FACTS: Final[dict[type[Event], Callable[[int, Any], AnyFact]]] = {
    ResponseNamed: lambda number, event: NamedFact(number, event.response_id),
    FirstToken: lambda number, _: FirstTokenFact(number),
    Generated: lambda number, event: GeneratedFact(number, _bounded(event.pieces)),
    Finished: _finished,
    Aborted: _aborted,
    Unobserved: lambda number, event: UnobservedFact(number, event.begun),
}
_WRITERS: Final[dict[type[Event], Callable[[FactWriter, Any], AnyFact | None]]] = {
    Admitted: FactWriter._admission,  # noqa: SLF001 (the table of this class)
    Served: FactWriter._served,  # noqa: SLF001
    **dict.fromkeys(_FACTS, FactWriter._of_request),  # noqa: SLF001
    Ejected: FactWriter._ejected,  # noqa: SLF001
    Returned: FactWriter._returned,  # noqa: SLF001
    ResponseRepeated: FactWriter._repeated,  # noqa: SLF001
    CacheCleared: FactWriter._cleared,  # noqa: SLF001
}
SHARED_EVENTS: Final[tuple[type[Event], ...]] = tuple(_WRITERS)
"""The events that are sent to other replicas, which cannot find these out themselves."""
