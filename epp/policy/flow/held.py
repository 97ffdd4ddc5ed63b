"""One request that waits in the picker."""

from math import inf
from typing import Final

from epp.model.endpoint import EndpointId
from epp.model.quote import Quote
from epp.model.request import InferenceRequest

Rank = tuple[float, float]
"""Where a request stands among those of its flow; the least goes next."""


class Held:
    """One request that waits; `request` has neither prompts nor a body any more.

    It came at `since` and waits at `endpoint_id`, where its prefill would take `seconds` and the
    whole of it `work` seconds of the engine. At `until` it is sent whether there is room or not; at
    `deadline` it is refused. Its first token is due at `ttft_by`. `flow` is the flow that it counts
    towards in its band. `ticket` says which of its entries in the line counts, 0 none.
    """

    __slots__ = (
        "deadline",
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

    @property
    def waits(self) -> bool:
        """Whether it is in the line."""
        return self.ticket > 0

    @property
    def latest(self) -> float:
        """When it has to go for its first token to be in time."""
        return self.ttft_by - self.seconds


class Due:
    """When a request is to be looked at for its time is up; less is sooner."""

    __slots__ = ("at", "held")

    def __init__(self, at: float, held: Held) -> None:
        self.at: Final = at
        self.held: Final = held

    def __lt__(self, other: "Due") -> bool:
        return self.at < other.at
