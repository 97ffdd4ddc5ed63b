"""What the picker sent to one endpoint and has not seen done: requests, and seconds of prefill.

Prefill is paid back by the first token where that is seen, else by a virtual clock: the head of
the line works from the moment it got there, and is over when its predicted seconds are.
"""

from collections import OrderedDict
from typing import NamedTuple

from epp.model.request import RequestId

OVERDUE_SECONDS = 60.0
"""How long past its prediction the head of the line may hold up the others in the books."""


_ANY = 1e-9


class LedgerSnapshot(NamedTuple):
    """The ledgers of several endpoints at one moment, as aligned columns.

    `queued_prefill_seconds` of prefill are to be done there, those for requests of others
    included. `requests` were sent and have not ended. `running` counts the requests that run
    there, whoever sent them. `busy` of the endpoints have prefill of this picker's to do.
    """

    queued_prefill_seconds: list[float]
    requests: list[int]
    running: list[float]
    busy: int


class _Entry:
    __slots__ = ("deadline_only", "seconds")

    def __init__(self, seconds: float, *, deadline_only: bool) -> None:
        self.seconds = seconds
        self.deadline_only = deadline_only


class Ledger:
    """The books of one endpoint. Times are seconds of the caller's clock, which never goes back.

    Beside them stands what a scrape showed of others' requests: `running` there in all, and
    `external_waiting` ones that wait.
    """

    __slots__ = ("_head_since", "_line", "_open", "_owed", "external_waiting", "running")

    def __init__(self) -> None:
        self.external_waiting = 0.0
        self.running = 0.0
        self._line: OrderedDict[RequestId, _Entry] = OrderedDict()
        self._owed = 0.0
        self._head_since = 0.0
        self._open: set[RequestId] = set()

    @property
    def requests(self) -> int:
        """Requests sent whose end was not seen."""
        return len(self._open)

    def prefilling(self, now: float) -> int:
        """Count the requests whose prefill is not over."""
        self._advance(now)
        return len(self._line)

    def owed(self, now: float) -> float:
        """Return the seconds of prefill still to be done: more than 0 while any is not over."""
        if not self._line or not self.prefilling(now):
            return 0.0
        head = next(iter(self._line.values()))
        done = min(head.seconds, max(0.0, now - self._head_since))
        # The head may take longer than predicted, and sums of floats may fall short.
        return max(_ANY, self._owed - done)

    def owed_before(self, request: RequestId, now: float) -> float:
        """Return the seconds of prefill that stand before a request; 0 once its own is over."""
        self._advance(now)
        if request not in self._line:
            return 0.0
        before = 0.0
        for other, entry in self._line.items():
            if other == request:
                break
            before += entry.seconds
        return max(0.0, before - max(0.0, now - self._head_since))

    def admit(self, request: RequestId, seconds: float, now: float, *, observed: bool) -> None:
        """Book a request; `observed` when its first token will be seen."""
        self.first_token(request, now)  # where it is booked already, this is all that it owes
        if not self._line:
            self._head_since = now
            self._owed = 0.0
        self._line[request] = _Entry(seconds, deadline_only=not observed)
        self._owed += seconds
        self._open.add(request)

    def first_token(self, request: RequestId, now: float) -> None:
        """The request's prefill is over."""
        self._advance(now)
        if request in self._line:
            self._strike(request, now)

    def unobserved(self, request: RequestId) -> None:
        """Nothing more will be seen of the request: the clock pays what it owes."""
        if request in self._line:
            self._line[request].deadline_only = True

    def end(self, request: RequestId, now: float) -> None:
        """The request is over."""
        self.first_token(request, now)
        self._open.discard(request)

    def _strike(self, request: RequestId, since: float) -> None:
        is_head = next(iter(self._line)) == request
        entry = self._line.pop(request)
        self._owed = max(0.0, self._owed - entry.seconds)
        if is_head:
            self._head_since = since

    def _advance(self, now: float) -> None:
        while self._line:
            request, head = next(iter(self._line.items()))
            grace = 0.0 if head.deadline_only else OVERDUE_SECONDS
            over = self._head_since + head.seconds + grace
            if now < over:
                return
            self._strike(request, over)


def take_snapshot(ledgers: list[Ledger], prices: list[float], now: float) -> LedgerSnapshot:
    """Return the books of endpoints where a prompt like the one at hand takes `prices` seconds.

    Requests of others that wait there are seen in scrapes alone, and counted at that price.
    """
    queued: list[float] = []
    requests: list[int] = []
    running: list[float] = []
    busy = 0
    for position, ledger in enumerate(ledgers):
        seconds, count = 0.0, len(ledger._open)  # noqa: SLF001 (of this module, a thousand times)
        if count:
            seconds = ledger.owed(now)
            busy += seconds > 0
        if ledger.external_waiting:
            seconds += ledger.external_waiting * prices[position]
        queued.append(seconds)
        requests.append(count)
        running.append(max(float(count), ledger.running))
    return LedgerSnapshot(queued, requests, running, busy)
