"""The reader: messages of other replicas, as events for the fleet and answers to their senders.

Nothing that a peer sends raises: what cannot be used is dropped, and counted by its reason.
Messages may be lost, and may come twice and in any order.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

from epp.model.endpoint import EndpointId, Target
from epp.model.events import Ejected, Event, Returned
from epp.model.kv_changes import CacheCleared
from epp.model.prompts.chain import Chain
from epp.model.prompts.hashing import BlockHash
from epp.model.prompts.repeated import ResponseRepeated
from epp.model.prompts.token_offsets import TokenOffsets
from epp.model.quote import Quote
from epp.model.request import InferenceRequest, RequestId, Usage
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
from epp.protocol.replicas.chains import UnknownChain, read_prompt, read_words
from epp.protocol.replicas.fact_writer import FactWriter
from epp.protocol.replicas.facts import (
    AbortedFact,
    AdmittedFact,
    AnyFact,
    ChainQuery,
    ChainReply,
    ClearedFact,
    CopyFact,
    EjectedFact,
    Fact,
    FinishedFact,
    FirstTokenFact,
    GeneratedFact,
    HeartbeatFact,
    HeartbeatSeen,
    InFlightQuery,
    InFlightReply,
    LeavingFact,
    NamedFact,
    PromptFact,
    RepeatedFact,
    RequestFact,
    RequestsQuery,
    ReturnedFact,
    ServedFact,
    UnobservedFact,
    WaitingFact,
)
from epp.protocol.replicas.messages import (
    LONGEST,
    Dropped,
    Received,
    Rejected,
    ReplicaMessage,
    read_facts,
    read_message,
)
from epp.protocol.replicas.peers import CHAIN_SECONDS, Peer

LEASE_SECONDS: Final = 10.0
"""How long a peer may be silent before no more facts about its requests are expected."""
_FORGOTTEN_SECONDS: Final = 600.0
"""How long a peer that is gone is remembered."""
_MAX_PEERS: Final = 1024
_MAX_ASKED: Final = 4096
"""The most requests that are asked for at once."""
_MAX_ANSWERS: Final = 4096
_MAX_BYTES: Final = LONGEST // 4
"""The most answers to one message, and bytes of prompts in them, one answer aside."""
_QUESTIONS: Final = frozenset((ChainQuery, HeartbeatFact, InFlightQuery, RequestsQuery))
"""Facts that are answered: one of each kind per message, and one for each chain."""

_NOTHING: Final = Received(0, (), (), None)
_OWN: Final = Received(0, (), (), None, own=True)


class FactReader:
    """Reads the messages of all peers of one replica, whose facts the `writer` writes."""

    def __init__(self, writer: FactWriter) -> None:
        self.applied = 0
        self.dropped: Final = Counter[Dropped]()
        self.peers: Final[dict[int, Peer]] = {}
        self._pool: Final = writer.pool
        self._own: Final = writer.own
        self._known: Final = writer.known
        self._writer: Final = writer
        self._now = 0.0
        self._answers: list[AnyFact] = []
        self._bytes = 0  # of prompts in the answers
        self._questions: set[AnyFact | type[AnyFact]] = set()
        self._copies: list[CopyFact] = []
        self._waiting: list[WaitingFact] = []

    def read(self, data: bytes, now: float) -> Received:
        """Read one message."""
        try:
            message = read_message(data)
            peer = self._peer_of(message)
            facts, unknown = read_facts(message)
        except Rejected as rejected:
            self.dropped[rejected.reason] += 1
            return _OWN if rejected.reason is Dropped.OWN else _NOTHING
        if unknown:
            self.dropped[Dropped.UNKNOWN_KIND] += unknown
        lag = peer.receive(message, now)
        self._now, self._answers, self._copies, self._waiting = now, [], [], []
        self._questions, self._bytes = set(), 0
        events: list[Event] = []
        for fact in facts:
            if type(fact) in _QUESTIONS and self._is_asked(fact):
                continue
            try:
                events += _READERS[type(fact)](self, peer, fact) or ()
            except ValueError:
                self.dropped[Dropped.NONSENSE] += 1
        self.applied += len(events)
        return Received(
            peer.number, events, self._answers, lag, copies=self._copies, waiting=self._waiting
        )

    def _is_asked(self, fact: AnyFact) -> bool:
        """Return whether an earlier fact of the message asked the same question."""
        question = fact if isinstance(fact, ChainQuery) else type(fact)
        before = question in self._questions
        self._questions.add(question)
        return before

    @property
    def _has_room(self) -> bool:
        """Whether there is room for one more answer: the sender asks again for what it lacks."""
        return len(self._answers) < _MAX_ANSWERS and self._bytes < _MAX_BYTES

    def _answer(self, fact: AnyFact, prompts: Sequence[PromptFact] = ()) -> None:
        """Answer with a fact, which has these prompts, if there is room."""
        if self._has_room:
            self._answers.append(fact)
            self._bytes += sum([len(each.hashes) + len(each.ends) for each in prompts])

    def _peer_of(self, message: ReplicaMessage) -> Peer:
        if message.pool != self._pool:
            raise Rejected(Dropped.POOL)
        if message.sender == self._own:
            raise Rejected(Dropped.OWN)
        peer = self.peers.get(message.sender)
        if peer is None:
            if len(self.peers) >= _MAX_PEERS and not self._forget_one():
                raise Rejected(Dropped.STRANGER)
            peer = self.peers[message.sender] = Peer(message.sender)
        if message.sequence and not peer.is_new(message.sequence):
            raise Rejected(Dropped.REPEATED)
        return peer

    def _forget_one(self) -> bool:
        """Forget the peer that has been gone longest; return whether there was one."""
        gone = [
            each for each in self.peers.values() if not each.present and not each.requests.in_flight
        ]
        if not gone:
            return False
        del self.peers[min(gone, key=attrgetter("last_message_at")).number]
        return True

    def lapse(self, now: float) -> Iterator[Event]:
        """Yield events for the requests of peers that have fallen silent.

        The fleet then guesses how they end, by its clock and by what the engines count.
        """
        for number, peer in list(self.peers.items()):
            self.dropped[Dropped.NO_CHAIN] += peer.overdue_chains(now - CHAIN_SECONDS)
            silent = now - peer.last_message_at
            if silent > LEASE_SECONDS and (peer.present or peer.requests.in_flight):
                yield from peer.leave()
            if silent > _FORGOTTEN_SECONDS:
                del self.peers[number]

    @property
    def present(self) -> int:
        """How many peers are present."""
        return sum([peer.present for peer in self.peers.values()])

    def unseen(self, now: float) -> tuple[float, int, int]:
        """Return how many requests of peers are probably still on their way to this replica.

        Also return how many present replicas have lower numbers than this one, and how many
        replicas there are in all, this one included.
        """
        requests, below, present = 0.0, 0, 1
        for peer in self.peers.values():
            if peer.present:
                requests += peer.unseen(now)
                below += peer.number < self._own
                present += 1
        return requests, below, present

    # Requests.

    def _admitted(self, peer: Peer, fact: AdmittedFact) -> Sequence[Event]:
        number, name = fact.number, fact.id
        if not self._is_current(fact.endpoint, fact.epoch):
            return ()
        chains, offsets = list[Chain](), list[TokenOffsets]()
        try:
            for each in fact.prompts:
                chain, lengths = read_prompt(each, self._known)
                chains.append(chain)
                offsets.append(lengths)
        except UnknownChain as unknown:
            if not peer.requests.is_over(number) and peer.wait(unknown.tip, fact, self._now):
                self._answer(ChainQuery(unknown.tip, unknown.blocks))
            return ()
        request = InferenceRequest(
            id=name,
            target_model=fact.model,
            api=fact.api,
            stream=fact.stream,
            max_tokens=fact.max_tokens,
            n=fact.n,
            skip_reading_prefix_cache=any(each.hashes and not each.lookup for each in chains),
        )
        if not peer.requests.admit(number, name):
            self.dropped[Dropped.REPEATED] += 1
            return ()
        peer.sent(self._now)
        quote = Quote(request, tuple(chains), tuple(offsets), fact.kind)
        admitted = Admitted(quote, fact.endpoint, fact.prefill, fact.encode)
        early = peer.requests.early(number)
        if not early:
            return (admitted,)
        return admitted, *[_EVENTS[type(fact)](name, fact) for fact in early]

    def _is_current(self, endpoint_id: EndpointId, epoch: int) -> bool:
        engine = self._writer.engine(endpoint_id)
        if engine is None:
            self.dropped[Dropped.UNKNOWN_ENDPOINT] += 1
            return False
        if engine[1] != epoch:
            self.dropped[Dropped.STALE_ENDPOINT] += 1
            return False
        return True

    def _of_request(self, peer: Peer, fact: RequestFact) -> Sequence[Event]:
        request = peer.requests.take(fact)
        return () if request is None else (_EVENTS[type(fact)](request, fact),)

    # Endpoints and responses.

    def _ejected(self, _peer: Peer, fact: EjectedFact) -> Sequence[Event]:
        return (Ejected(fact.endpoint, fact.reason, fact.seconds),)

    def _returned(self, _peer: Peer, fact: ReturnedFact) -> Sequence[Event]:
        return (Returned(fact.endpoint),)

    def _cleared(self, _peer: Peer, fact: ClearedFact) -> Sequence[Event]:
        known = self._writer.engine(fact.endpoint) is not None  # else a snapshot may be under way
        current = not known or self._is_current(fact.endpoint, fact.epoch)
        return (CacheCleared(fact.endpoint),) if current else ()

    def _repeated(self, _peer: Peer, fact: RepeatedFact) -> Sequence[Event]:
        hashes = read_words(fact.hashes)
        if not hashes or len(hashes) != len(fact.sizes):
            raise ValueError("as many sizes as blocks")
        named = [BlockHash(each) for each in hashes]
        return (ResponseRepeated(fact.id, BlockHash(fact.anchor), named, fact.sizes),)

    # Chains.

    def _chain_query(self, _peer: Peer, fact: ChainQuery) -> None:
        if self._has_room:
            reply = self._writer.chain(fact)
            self._answer(reply, () if reply.prompt is None else (reply.prompt,))

    def _chain_reply(self, peer: Peer, fact: ChainReply) -> Iterator[Event]:
        waiting = peer.waiting_for(fact.tip)
        if fact.prompt is None:
            self.dropped[Dropped.NO_CHAIN] += len(waiting)
            return
        try:
            read_prompt(fact.prompt, self._known)
        except UnknownChain:
            raise ValueError("a chain is sent in full") from None
        for admitted in waiting:
            yield from self._admitted(peer, admitted)

    # Signs of life.

    def _heartbeat(self, peer: Peer, fact: HeartbeatFact) -> None:
        self._answer(HeartbeatSeen(fact.at, self._now))
        peer.settled, peer.full = fact.settled, fact.full
        if not peer.agrees(fact):
            self._answer(InFlightQuery())

    def _heartbeat_seen(self, peer: Peer, fact: HeartbeatSeen) -> None:
        peer.set_clock(fact.heartbeat, fact.at, self._now)

    def _in_flight_query(self, _peer: Peer, _fact: InFlightQuery) -> None:
        self._answer(self._writer.in_flight())

    def _in_flight_reply(self, peer: Peer, fact: InFlightReply) -> Iterator[Event]:
        listed = set(fact.numbers)
        for number in peer.requests.in_flight.keys() - listed:
            if number <= fact.newest:  # others were sent after the list, and received before it
                yield Aborted(peer.requests.end(number))
        believed = peer.believed()
        missing = [each for each in fact.numbers if each not in believed]
        if missing:
            self._answer(RequestsQuery(missing[:_MAX_ASKED]))

    def _requests_query(self, _peer: Peer, fact: RequestsQuery) -> None:
        for each in self._writer.admissions(fact.numbers[:_MAX_ASKED]):
            self._answer(each, each.prompts)
            if not self._has_room:
                return

    def _leaving(self, peer: Peer, _fact: LeavingFact) -> Iterator[Event]:
        peer.left = True
        return peer.leave()

    def _waits(self, _peer: Peer, fact: WaitingFact) -> None:
        self._waiting.append(fact)

    def _copy(self, _peer: Peer, fact: CopyFact) -> None:
        self._copies.append(fact)


def _finished(request: RequestId, fact: FinishedFact) -> Event:
    usage = None
    if fact.reported:
        usage = Usage(
            fact.prompt_tokens, fact.completion_tokens, fact.cached_tokens, fact.implausible
        )
    return Finished(request, usage, fact.generated)


def _aborted(request: RequestId, fact: AbortedFact) -> Event:
    failure = Failure.BUSY if fact.busy else fact.failure
    return Aborted(request, fact.generated, fact.refused, failure, fact.served, fact.computed)


_EVENTS: Final[dict[type[RequestFact], Callable[[RequestId, Any], Event]]] = {
    ServedFact: lambda request, fact: Served(request, Target(fact.target), retried=fact.retried),
    NamedFact: lambda request, fact: ResponseNamed(request, fact.response),
    FirstTokenFact: lambda request, _: FirstToken(request),
    GeneratedFact: lambda request, fact: Generated(request, fact.pieces),
    FinishedFact: _finished,
    AbortedFact: _aborted,
    UnobservedFact: lambda request, fact: Unobserved(request, fact.begun),
}
_READERS: Final[dict[type[Fact], Callable[[FactReader, Peer, Any], Any]]] = {
    AdmittedFact: FactReader._admitted,  # noqa: SLF001 (the table of this class)
    **dict.fromkeys(_EVENTS, FactReader._of_request),  # noqa: SLF001
    EjectedFact: FactReader._ejected,  # noqa: SLF001
    ReturnedFact: FactReader._returned,  # noqa: SLF001
    RepeatedFact: FactReader._repeated,  # noqa: SLF001
    ClearedFact: FactReader._cleared,  # noqa: SLF001
    ChainQuery: FactReader._chain_query,  # noqa: SLF001
    ChainReply: FactReader._chain_reply,  # noqa: SLF001
    HeartbeatFact: FactReader._heartbeat,  # noqa: SLF001
    HeartbeatSeen: FactReader._heartbeat_seen,  # noqa: SLF001
    InFlightQuery: FactReader._in_flight_query,  # noqa: SLF001
    InFlightReply: FactReader._in_flight_reply,  # noqa: SLF001
    RequestsQuery: FactReader._requests_query,  # noqa: SLF001
    LeavingFact: FactReader._leaving,  # noqa: SLF001
    WaitingFact: FactReader._waits,  # noqa: SLF001
    **dict.fromkeys(CopyFact.__args__, FactReader._copy),  # noqa: SLF001
}
