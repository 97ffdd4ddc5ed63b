"""The requests of one peer: facts in any order become events in the order that a fleet needs.

A request's facts have stages. What comes before the request itself is kept until that comes; what
comes after a later stage is late, and changes nothing. Facts that come twice are such, too.
"""

from collections import OrderedDict
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
"""Requests of which facts are kept that came before them, at most."""
_MAX_PER_REQUEST: Final = 64
_MAX_OVER: Final = 1 << 14
"""Requests that are over and remembered, at most."""
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
class Told:
    """A request, and the last stage that was told of it."""

    def __init__(self, request: RequestId) -> None:
        self.request: Final = request
        self.stage = 0


class RequestsOfPeer:
    """What one peer has in flight, by the numbers that it gave its requests."""

    def __init__(self) -> None:
        self.in_flight: Final[dict[int, Told]] = {}
        self._by_id: Final[dict[RequestId, int]] = {}
        self._early: Final[dict[int, list[RequestFact]]] = {}
        self._over: Final[OrderedDict[int, None]] = OrderedDict()

    def admit(self, number: int, request: RequestId) -> bool:
        """Take in that a request was sent; return whether that is news."""
        if number in self.in_flight or number in self._over:
            return False
        before = self._by_id.get(request)
        if before is not None:  # sent again, under another number: the last one counts
            if number < before:
                self._early.pop(number, None)
                self._remember(number)
                return False
            self._forget(before)
        self.in_flight[number] = Told(request)
        self._by_id[request] = number
        return True

    def early(self, number: int) -> Sequence[RequestFact]:
        """Return what was told of a request before it was, in the order of its stages."""
        facts = self._early.pop(number, None)
        if facts is None:
            return ()
        return [each for each in sorted(facts, key=_stage) if self.take(each) is not None]

    def take(self, fact: RequestFact) -> RequestId | None:
        """Take in a fact; return the request that it is about, None if it changes nothing now."""
        number, stage = fact.number, _STAGES[type(fact)]
        told = self.in_flight.get(number)
        if told is None:
            self._keep(fact)
            return None
        if stage < told.stage:
            return None
        if stage == _OVER:
            self._forget(number)
        else:
            told.stage = stage
        return told.request

    def is_over(self, number: int) -> bool:
        """Return whether a request is known to have ended."""
        return number in self._over

    def ends_early(self, number: int) -> bool:
        """Return whether the end of a request was told before itself."""
        return any(_stage(each) == _OVER for each in self._early.get(number, ()))

    def end(self, number: int) -> RequestId | None:
        """Take in that a request is not in flight any more; return it, None if it was not."""
        told = self.in_flight.get(number)
        if told is None:
            return None
        self._forget(number)
        return told.request

    def end_all(self) -> list[RequestId]:
        """Take in that nothing more will be told; return what was in flight."""
        requests = [told.request for told in self.in_flight.values()]
        self.in_flight.clear()
        self._by_id.clear()
        self._early.clear()
        return requests

    def _forget(self, number: int) -> None:
        request = self.in_flight.pop(number).request
        if self._by_id.get(request) == number:
            del self._by_id[request]
        self._remember(number)

    def _remember(self, number: int) -> None:
        """Remember that a request is over."""
        make_room(self._over, _MAX_OVER)
        self._over[number] = None

    def _keep(self, fact: RequestFact) -> None:
        if fact.number in self._over:
            return
        kept = self._early.get(fact.number)
        if kept is None:
            make_room(self._early, _MAX_EARLY)
            kept = self._early[fact.number] = []
        if len(kept) < _MAX_PER_REQUEST:
            kept.append(fact)


def digest_of(numbers: Iterable[int]) -> int:
    """Return what tells sets of requests' numbers apart, in any order: a sum of hashes."""
    digest = 0
    for number in numbers:
        mixed = number * _FIRST & _DIGEST
        mixed = (mixed ^ mixed >> 19) * _SECOND & _DIGEST
        digest += mixed ^ mixed >> 21
    return digest & _DIGEST


def _stage(fact: RequestFact) -> int:
    return _STAGES[type(fact)]
