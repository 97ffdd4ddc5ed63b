"""The endpoints that may be picked for one request, by column.

A policy that compares numbers reads columns; a `Candidate` is made when one is looked at, so that
a pick among a thousand endpoints makes one.
"""

from collections.abc import Iterator, Sequence
from operator import index as number_of
from typing import Final, SupportsIndex, overload

from epp.model.candidate import Candidate
from epp.model.endpoint import Endpoint, Load
from epp.model.estimate import Estimate
from epp.model.pods.in_flight import PrefixLookup
from epp.model.pods.ledger import LedgerSnapshot

_DECODE_SECONDS: Final = 20e-6
"""What one running decode adds to a step (study, cost model A)."""


class Candidates(Sequence[Candidate]):
    """What is believed of endpoints at one moment, all columns aligned; it never changes.

    `busy_share` is the fleet's; the rest is as `Candidate` says.
    """

    __slots__ = (
        "_asked",
        "_endpoints",
        "_estimates",
        "_loads",
        "_owed",
        "_requests",
        "_running",
        "_trust",
        "busy_share",
    )

    def __init__(  # noqa: PLR0913, PLR0917 (one column each)
        self,
        lookup: PrefixLookup,
        endpoints: Sequence[Endpoint],
        loads: Sequence[Load],
        estimates: Sequence[Estimate],
        trust: Sequence[float],
        take_snapshot: LedgerSnapshot,
        busy_share: float,
    ) -> None:
        self._asked = lookup
        self._endpoints = endpoints
        self._loads = loads
        self._estimates = estimates
        self._trust = trust
        self._owed, self._requests, self._running, _ = take_snapshot
        self.busy_share = busy_share

    def __len__(self) -> int:
        return len(self._endpoints)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Candidate: ...

    @overload
    def __getitem__(self, index: slice) -> list[Candidate]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Candidate | list[Candidate]:
        if isinstance(index, slice):
            return [self._make(position) for position in range(*index.indices(len(self)))]
        return self._make(number_of(index))

    def __iter__(self) -> Iterator[Candidate]:
        return map(self._make, range(len(self)))

    def _make(self, position: int) -> Candidate:
        lookup, estimate = self._asked, self._estimates[position]
        return Candidate(
            endpoint=self._endpoints[position],
            load=self._loads[position],
            prompt_tokens=lookup.tokens,
            cached_tokens=estimate.cached,
            matched_blocks=estimate.matched,
            total_blocks=lookup.blocks,
            queued_prefill_seconds=self._owed[position],
            prefill_seconds=estimate.seconds,
            decode_seconds=_DECODE_SECONDS * self._running[position],
            requests=self._requests[position],
            busy_share=self.busy_share,
            trust=self._trust[position],
        )

    def seconds(self, price: float) -> list[float]:
        """Return owed, prefill at a `price`, and decode seconds of each, added up."""
        owed, estimates, running = self._owed, self._estimates, self._running
        return [
            owed[position] + price * estimate.seconds + _DECODE_SECONDS * running[position]
            for position, estimate in enumerate(estimates)
        ]
