"""Requests that wait at several replicas, as one line: each sends which of its own go next.

Nothing waits for an answer: a replica uses what it received within the last twentieth of a second,
and only its own line if it received nothing.
"""

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from epp.model.quote import Quote
from epp.model.request import InferenceRequest, RequestId
from epp.policy.flow.held import HeldRequest, WaitingElsewhere
from epp.policy.flow.line import MAX_SHARED, REPEAT_SECONDS, SHARE_SECONDS, Line
from epp.protocol.replicas.facts import AnyFact, WaitingFact, WaitingHead

_LONGEST: Final = 1e12


class SharedLine:
    """The line of one replica. `send` sends to all others; `clock` returns monotonic seconds."""

    def __init__(
        self, line: Line, send: Callable[[Sequence[AnyFact]], None], clock: Callable[[], float]
    ) -> None:
        self._line: Final = line
        self._send: Final = send
        self._clock: Final = clock
        self._timer: asyncio.Handle | None = None
        self._due = inf
        line.on_change = self._changed

    def receive(self, sender: int, fact: WaitingFact) -> None:
        """Update what goes next at another replica."""
        now = self._clock()
        waiting = [_from_head(each, now) for each in fact.heads[:MAX_SHARED]]
        self._line.update_replica(sender, waiting, fact.seconds, now)

    def _changed(self) -> None:
        soon = asyncio.get_running_loop().time() + SHARE_SECONDS
        if soon < self._due:
            self._send_at(soon)

    def _send_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # The time is kept here, as a handle of uvloop that is due no longer has it.
        self._due = at
        self._timer = asyncio.get_running_loop().call_at(at, self._send_heads)

    def _send_heads(self) -> None:
        self._timer, self._due = None, inf
        now, line = self._clock(), self._line
        heads = [_to_head(each, line.ahead(each), now) for each in line.heads(now)[:MAX_SHARED]]
        self._send([WaitingFact(min(_LONGEST, max(0.0, line.seconds)), heads)])
        if line.requests:
            self._send_at(asyncio.get_running_loop().time() + REPEAT_SECONDS)


def _to_head(held: HeldRequest, ahead: float, now: float) -> WaitingHead:
    return WaitingHead(
        held.request.priority,
        held.endpoint_id,
        min(_LONGEST, ahead),
        min(_LONGEST, held.seconds),
        held.since - now,
        _until(held.deadline, now),
        _until(held.ttft_by, now),
    )


def _until(moment: float, now: float) -> float | None:
    return None if moment - now > _LONGEST else moment - now


def _from_head(fact: WaitingHead, now: float) -> WaitingElsewhere:
    request = InferenceRequest(id=RequestId(""), priority=fact.priority)
    deadline = inf if fact.deadline is None else now + fact.deadline
    ttft_by = inf if fact.ttft_by is None else now + fact.ttft_by
    held = HeldRequest(
        request,
        Quote(request, (), ()),
        now + fact.since,
        until=inf,
        deadline=deadline,
        ttft_by=ttft_by,
    )
    held.endpoint_id, held.seconds = fact.endpoint, fact.seconds
    return WaitingElsewhere(held, fact.ahead)
