"""The last decisions, kept for inspection: candidates, costs, and what happened then.

A request costs an entry in a dictionary and a few sums; a decision is explained only when a page
asks for it.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from mypy_extensions import mypyc_attr

from epp.app.observers import Observer
from epp.errors import RequestError
from epp.model.decision import Decision
from epp.model.endpoint import EndpointId, Target
from epp.model.events import EndpointRemoved, Event
from epp.model.fleet import Fleet
from epp.model.quote import Quote
from epp.model.request import InferenceRequest, RequestId, Usage
from epp.model.request_events import Failure
from epp.policy.explanations.explanation import Explanation, explain
from epp.policy.explanations.ranking import Measure
from epp.protocol.extproc.record import Outcome, RequestRecord

MAX_DECISIONS: Final = 1024
_MAX_WEIGHT: Final = 1 << 18
"""The weight of all decisions together: some 30 MB."""
MAX_CANDIDATES: Final = 16
"""Candidates of one decision that are explained, at most."""
MAX_CHARACTERS: Final = 256
"""The characters of a client's id that are kept."""
_SETTLE_SECONDS: Final = 1.0
_REQUEST_ID: Final = "x-request-id"


class Ending(NamedTuple):
    """How a request ended. Times are in seconds of the picker's clock."""

    outcome: Outcome
    """How it ended."""
    status: int | None
    """The HTTP status; None if there was none."""
    received_at: float
    """When the request's first bytes came."""
    first_byte_at: float | None
    """When the response began; None if it did not."""
    finished_at: float | None
    """When the request ended; None if it did not."""
    streaming: bool
    """Whether the response is streamed."""
    usage: Usage | None
    """The tokens that the model server reported; None if it did not."""
    served: Target | None
    """The target that served it, as the proxy reported; None if it did not report one."""
    failure: Failure | None
    """How the endpoint failed; None if it did not."""
    error: RequestError | None
    """Why the picker refused the request; None if it did not."""


class Outline(NamedTuple):
    """Where a request went, and the predictions for it."""

    endpoint: EndpointId
    prompt_tokens: int
    cached_tokens: int
    """Tokens of the prompt that the cache there was predicted to serve."""
    ttft: float | None
    """The predicted time to the first token, in seconds."""


@mypyc_attr(free_list_len=1, acyclic=True)
class KeptDecision:
    """One request that was decided on, as long as it is kept.

    `number` counts all decisions from 1. `decided_at` is in seconds of the picker's clock,
    `weight` in units of some 100 bytes. `ended` are the fields of its `ending`, None until the
    request has ended; `ended_after` is the time of the last call of `endings` before that.
    """

    _outline: Outline

    def __init__(
        self, number: int, request: InferenceRequest, decision: Decision, now: float, weight: int
    ) -> None:
        self.number = number
        self.request_id = request.id
        self.client_id = request.headers.get(_REQUEST_ID, "")[:MAX_CHARACTERS]
        self.model = request.target_model
        self.decided_at = now
        self.weight = weight
        self.ended: tuple[Any, ...] | None = None
        self.ended_after = 0
        self._decision: Decision | None = decision
        self._explanations: tuple[Explanation, ...] = ()

    @property
    def ending(self) -> Ending | None:
        """How the request ended."""
        return None if self.ended is None else Ending(*self.ended)

    @property
    def decision(self) -> Decision | None:
        """The decision itself; None once it is settled."""
        return self._decision

    @property
    def outline(self) -> Outline:
        """Where it went."""
        decision = self._decision
        if decision is None:
            return self._outline
        return Outline(
            decision.endpoint.id,
            decision.prompt_tokens,
            decision.predicted_cached_tokens,
            decision.predicted_ttft,
        )

    def explain(self, measures: Mapping[str, Measure]) -> tuple[Explanation, ...]:
        """Return what each profile that ran decided by, the request's own last."""
        decision = self._decision
        if decision is None:
            return self._explanations
        return tuple(
            explain(each, measures.get(each.profile, "other"), MAX_CANDIDATES)
            for each in (*decision.stages, decision)
            if each.candidates
        )

    def settle(self, measures: Mapping[str, Measure]) -> None:
        """Replace the decision by its explanation."""
        self._outline = self.outline
        self._explanations, self._decision = self.explain(measures), None


class EndpointTally:
    """Sums over the responses of one endpoint since the picker started, in tokens."""

    def __init__(self) -> None:
        self.requests = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.predicted_tokens = 0
        self.absolute_error = 0

    def add(self, other: "EndpointTally") -> None:
        """Add the sums of another one."""
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.predicted_tokens += other.predicted_tokens
        self.absolute_error += other.absolute_error


class DecisionRing:
    """Keeps the last `most` decisions on requests for a fleet, and how the requests ended.

    `measures` has what each profile compares; `number` is the last decision's number.
    """

    def __init__(
        self, fleet: Fleet, measures: Mapping[str, Measure], most: int = MAX_DECISIONS
    ) -> None:
        self.measures = measures
        self._most = most
        self._kept: deque[KeptDecision] = deque()
        self._by_id: dict[RequestId, KeptDecision] = {}
        self._weight = 0
        self.number = 0
        self._asked_at = 0
        self._unsettled = False
        self.tallies: dict[EndpointId, EndpointTally] = {}
        self._gone = EndpointTally()
        self._pods = fleet.pods
        fleet.subscribe((EndpointRemoved,), self._removed, "explain")

    @property
    def observer(self) -> Observer:
        """The observer of requests."""
        return Observer(name="explain", committing=self.committing, ended=self.ended, run=self.run)

    def committing(
        self, request: InferenceRequest, quote: Quote, decision: Decision, now: float
    ) -> None:
        """Keep a decision; the oldest make room."""
        weight = 8 + len(decision.candidates) + (quote.blocks >> 2)
        self.number += 1
        self._weight += weight
        kept = KeptDecision(self.number, request, decision, now, weight)
        self._kept.append(kept)
        self._by_id[request.id] = kept
        while len(self._kept) > self._most or self._weight > _MAX_WEIGHT:
            oldest = self._kept.popleft()
            self._weight -= oldest.weight
            self._by_id.pop(oldest.request_id, None)

    def ended(self, record: RequestRecord) -> None:
        """Keep how a request ended, and add its usage to the sums of its endpoint."""
        kept = self._by_id.get(record.id)
        if kept is not None:
            kept.ended = (  # an `Ending` would cost three times as much
                record.outcome,
                record.status,
                record.received_at,
                record.first_byte_at,
                record.finished_at,
                record.streaming,
                record.usage,
                record.served,
                record.failure,
                record.error,
            )
            kept.ended_after = self._asked_at
        decision, usage = record.decision, record.usage
        if decision is None or usage is None or usage.cached_tokens is None:
            return
        if record.elsewhere or record.follows_up:
            return
        name = decision.endpoint.id
        tally = self.tallies.get(name)
        if tally is None and self._pods.get(name) is None:  # it was removed before its response
            tally = self._gone
        if tally is None:
            tally = self.tallies[name] = EndpointTally()
        predicted, cached = decision.predicted_cached_tokens, usage.cached_tokens
        tally.requests += 1
        tally.prompt_tokens += usage.prompt_tokens
        tally.cached_tokens += cached
        tally.predicted_tokens += predicted
        tally.absolute_error += abs(predicted - cached)

    def total(self) -> EndpointTally:
        """Return the sums over the responses of all endpoints, removed ones included."""
        total = EndpointTally()
        total.add(self._gone)
        for tally in self.tallies.values():
            total.add(tally)
        return total

    def find(self, request: str) -> list[KeptDecision]:
        """Return the decisions on a request, by the picker's or the client's id of it."""
        client_id = request[:MAX_CHARACTERS]
        return [
            each for each in self._kept if request == each.request_id or client_id == each.client_id
        ]

    def since(self, number: int, most: int) -> list[KeptDecision]:
        """Return the decisions after a number, the first `most` of them, in their order."""
        # They are kept in the order of their numbers.
        wanted = self.number - number
        return list(self._kept)[-wanted:][:most] if wanted > 0 else []

    def endings(self, since: int, now: int, most: int) -> list[KeptDecision]:
        """Return the decisions whose requests have ended since a call, the last `most` of them.

        `since` is the `now` of that call. If the clock is set back, no ending is missed, but some
        are returned twice.
        """
        ended = [
            each for each in self._kept if each.ended is not None and each.ended_after >= since
        ]
        self._asked_at = max(self._asked_at, now)
        return ended[-most:]

    def last(self, most: int) -> list[KeptDecision]:
        """Return the last decisions, in their order."""
        return list(self._kept)[-most:] if most else []

    def _removed(self, event: Event, _now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        """Forget an endpoint, and have the decisions settled: it was a candidate of most."""
        if isinstance(event, EndpointRemoved):
            tally = self.tallies.pop(event.endpoint_id, None)
            if tally is not None:
                self._gone.add(tally)
            self._unsettled = True

    async def run(self) -> None:
        """Drop references to removed pods, a decision at a time."""
        while True:
            await asyncio.sleep(_SETTLE_SECONDS)
            if self._unsettled:
                self._unsettled = False
                for each in list(self._kept):
                    each.settle(self.measures)
                    await asyncio.sleep(0)
