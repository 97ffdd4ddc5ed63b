"""The requests of one peer: facts in any order become events in the order that a fleet needs.

A request's facts have stages. Facts that come before the request itself are kept until it comes; a
fact that comes after one of a later stage, or for the second time, changes nothing.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from mypy_extensions import mypyc_attr

from epp.model.learning.bounded import make_room
from epp.model.request import RequestId
from epp.protocol.replicas.facts import (
    AbortedFact,
    FinishedFact,
    FirstTokenFact,
    GeneratedFact,
    NamedFact,
    RequestFact,
    ServedFact,
    UnobservedFact,
)

_MAX_EARLY: Final = 4096
"""The most requests whose facts are kept although they came first."""
_MAX_PER_REQUEST: Final = 64
_MAX_OVER: Final = 1 << 13
"""How many requests are remembered after their end, at least; at most twice as many."""
_DIGEST: Final = (1 << 40) - 1
"""The bits of a digest: products of them and of a factor are integers that take no memory."""
_FIRST, _SECOND = 0x19_B4A5, 0x1C_35B7
"""Odd factors of 21 bits; with the shifts, numbers that follow each other get unlike hashes."""

_STAGES: Final[dict[type[RequestFact], int]] = {
    ServedFact: 1,
    NamedFact: 1,
    FirstTokenFact: 2,
    GeneratedFact: 3,
    UnobservedFact: 4,
    AbortedFact: 4,
    FinishedFact: 4,
}
_OVER: Final = 4


@mypyc_attr(acyclic=True)
class PeerRequest:
    """A request of a peer, and the last stage that it reached."""

    def __init__(self, request: RequestId) -> None:
        self.request: Final = request
        self.stage = 0


class RequestsOfPeer:
    """What one peer has in flight, by the numbers that it gave its requests."""

    def __init__(self) -> None:
        self.in_flight: Final[dict[int, PeerRequest]] = {}
        self._by_id: Final[dict[RequestId, int]] = {}
        self._early: Final[dict[int, list[RequestFact]]] = {}
        self._over = set[int]()
        self._over_before = set[int]()

    def admit(self, number: int, request: RequestId) -> bool:
        """Record that a request was sent; return whether that is new."""
        if number in self.in_flight or self.is_over(number):
            return False
        before = self._by_id.get(request)
        if before is not None:  # sent again, under another number: the last one counts
            if number < before:
                self._early.pop(number, None)
                self._remember(number)
                return False
            self._forget(before, request)
        self.in_flight[number] = PeerRequest(request)
        self._by_id[request] = number
        return True

    def early(self, number: int) -> Sequence[RequestFact]:
        """Return the facts that came before their request, in the order of stages."""
        facts = self._early.pop(number, None)
        if facts is None:
            return ()
        return [each for each in sorted(facts, key=_stage) if self.take(each) is not None]

    def take(self, fact: RequestFact) -> RequestId | None:
        """Record a fact; return the request that it is about, None if it changes nothing now."""
        number, stage = fact.number, _STAGES[type(fact)]
        known = self.in_flight.get(number)
        if known is None:
            self._keep(fact)
            return None
        if stage < known.stage:
            return None
        if stage == _OVER:
            self._forget(number, known.request)
        else:
            known.stage = stage
        return known.request

    def is_over(self, number: int) -> bool:
        """Return whether a request is known to have ended."""
        return number in self._over or number in self._over_before

    def ends_early(self, number: int) -> bool:
        """Return whether the end of a request came before the request itself."""
        return any(_stage(each) == _OVER for each in self._early.get(number, ()))

    def end(self, number: int) -> RequestId:
        """Record that a request is no longer in flight; return it."""
        request = self.in_flight[number].request
        self._forget(number, request)
        return request

    def end_all(self) -> list[RequestId]:
        """Record that no more facts will come; return what was in flight."""
        requests = [known.request for known in self.in_flight.values()]
        self.in_flight.clear()
        self._by_id.clear()
        self._early.clear()
        return requests

    def _forget(self, number: int, request: RequestId) -> None:
        del self.in_flight[number]
        del self._by_id[request]
        self._remember(number)

    def _remember(self, number: int) -> None:
        """Remember that a request is over."""
        if len(self._over) >= _MAX_OVER:
            self._over_before, self._over = self._over, set()
        self._over.add(number)

    def _keep(self, fact: RequestFact) -> None:
        if self.is_over(fact.number):
            return
        kept = self._early.get(fact.number)
        if kept is None:
            make_room(self._early, _MAX_EARLY)
            kept = self._early[fact.number] = []
        if len(kept) < _MAX_PER_REQUEST:
            kept.append(fact)


def digest_of(numbers: Iterable[int]) -> int:
    """Return a number that distinguishes sets of requests' numbers: a sum of hashes."""
    digest = 0
    for number in numbers:
        mixed = number * _FIRST & _DIGEST
        mixed = (mixed ^ mixed >> 19) * _SECOND & _DIGEST
        digest += mixed ^ mixed >> 21
    return digest & _DIGEST


def _stage(fact: RequestFact) -> int:
    return _STAGES[type(fact)]
