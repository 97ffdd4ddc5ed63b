"""Requests that wait: in this picker, and as its other replicas tell of theirs."""

from collections.abc import Sequence
from math import inf
from typing import Final

from epp.model.endpoint import EndpointId
from epp.model.quote import Quote
from epp.model.request import InferenceRequest

_TOLD_SECONDS: Final = 0.05
"""For how long another replica is believed to have what it told."""

Rank = tuple[float, float]
"""Where a request stands among those of its flow; the least goes next."""


class Held:
    """One request that waits; `request` has neither prompts nor a body any more.

    It came at `since` and waits at `endpoint_id`, where its prefill would take `seconds` and the
    whole of it `work` seconds of the engine. At `until` it is sent whether there is room or not; at
    `deadline` it is refused. Its first token is due at `ttft_by`. `flow` is the flow that it counts
    towards in its band. `ticket` says which of its entries in the line counts, 0 none. At `due_at`
    it is looked at because its time is up; the sooner, the less it is.
    """

    __slots__ = (
        "deadline",
        "due_at",
        "endpoint_id",
        "flow",
        "quote",
        "rank",
        "request",
        "seconds",
        "since",
        "ticket",
        "tried_at",
        "ttft_by",
        "until",
        "work",
    )

    def __init__(  # noqa: PLR0913 (its times)
        self,
        request: InferenceRequest,
        quote: Quote,
        since: float,
        *,
        until: float,
        deadline: float,
        ttft_by: float = inf,
    ) -> None:
        self.request: Final = request
        self.quote: Final = quote
        self.since: Final = since
        self.until: Final = until
        self.deadline: Final = deadline
        self.ttft_by: Final = ttft_by
        self.endpoint_id = EndpointId("")
        self.flow = ""
        self.seconds = self.work = 0.0
        self.rank: Rank = (0.0, 0.0)
        self.tried_at = since
        self.ticket = 0
        self.due_at = inf

    def __lt__(self, other: "Held") -> bool:
        return self.due_at < other.due_at

    def __hash__(self) -> int:  # a compiled class that has an order has no hash of its own
        return id(self)

    @property
    def waits(self) -> bool:
        """Whether it is in the line."""
        return self.ticket > 0

    @property
    def latest(self) -> float:
        """When it has to go for its first token to be in time."""
        return self.ttft_by - self.seconds


class LineEntry:
    """Where a request stands in the line: by its rank of then, and after those that came before."""

    __slots__ = ("first", "held", "second", "ticket")

    def __init__(self, held: Held) -> None:
        self.first, self.second = held.rank
        self.ticket: Final = held.ticket
        self.held: Final = held

    def __lt__(self, other: "LineEntry") -> bool:
        if self.first != other.first:
            return self.first < other.first
        if self.second != other.second:
            return self.second < other.second
        return self.ticket < other.ticket

    @property
    def waits(self) -> bool:
        """Whether it is the one that counts for its request."""
        return self.held.ticket == self.ticket


class WaitingElsewhere:
    """One request that waits at another replica, and is the next one there at its endpoint.

    `held` stands for it, by the clock of this replica. Its flow is `ahead` in virtual time of what
    its band has passed there. `rank` is where it stands among those of its flow.
    """

    __slots__ = ("ahead", "held", "rank")

    def __init__(self, held: Held, ahead: float) -> None:
        self.held: Final = held
        self.ahead: Final = ahead
        self.rank: Rank = (0.0, 0.0)


class OtherLines:
    """What goes next at each of the other replicas, as far as was told a moment ago."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: dict[int, tuple[float, float, Sequence[WaitingElsewhere]]] = {}

    def hear(
        self, replica: int, waiting: Sequence[WaitingElsewhere], seconds: float, now: float
    ) -> None:
        """Take in what goes next at a replica, and the seconds of prefill of all that waits."""
        if waiting:
            self._told[replica] = now, seconds, waiting
        else:
            self._told.pop(replica, None)

    def _forget(self, now: float) -> None:
        for replica in [
            name for name, (at, _, _) in self._told.items() if now - at > _TOLD_SECONDS
        ]:
            del self._told[replica]

    def waiting(self, now: float) -> list[WaitingElsewhere]:
        """Return the requests that go next."""
        if not self._told:
            return []
        self._forget(now)
        return [each for _, _, waiting in self._told.values() for each in waiting]

    def seconds(self, now: float) -> float:
        """Return the seconds of prefill that wait."""
        if not self._told:
            return 0.0
        self._forget(now)
        return sum([seconds for _, seconds, _ in self._told.values()])
