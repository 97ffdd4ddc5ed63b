"""A call on its way, and the request that a picker is asked about."""

from math import nan

import msgspec

from epp.model.decision import Decision
from epp.model.request import DEFAULT_FAIRNESS_ID, Api, InferenceRequest, Prompt, RequestId
from epp.replay.engines.contract import Job
from epp.replay.simulation.picker import SimulatedPicker
from epp.replay.traffic.calls import Call, packed

MODEL = "replay"
_SESSION_HEADER = "x-session-id"
"""The header by which clients name their conversation, to policies that read it."""


class Visit(msgspec.Struct, eq=False):
    """A call that was sent. Times are in seconds."""

    number: int
    """The run's number of it."""
    call: Call
    """The call."""
    at: float
    """When it was sent."""
    picker: SimulatedPicker
    """The picker that it was sent to."""
    reusable: int
    """Tokens that an infinite cache that all share would have had."""
    came: float
    """When it came to the engine that has it."""
    began: float = nan
    """When its response began; NaN before."""
    prefilled: Job | None = None
    """What another engine computed before."""
    left: bool = False
    """Whether only the first token of the response is observed."""
    held: float = 0.0
    """How long it waited in the picker."""
    pod: int = -1
    """The number of its endpoint; -1 while there is none."""
    decision: Decision | None = None
    """Where it was sent; None before."""

    @property
    def request_id(self) -> RequestId:
        """The request's id: the call's number."""
        return RequestId(str(self.number))


def request_of(visit: Visit) -> InferenceRequest:
    """Return the request that the picker is asked about."""
    call = visit.call
    return InferenceRequest(
        id=visit.request_id,
        api=Api.COMPLETIONS,
        model=call.adapter or MODEL,
        target_model=call.adapter or MODEL,
        prompts=(Prompt(packed(call.prompt), exact=True, marks=call.marks),),
        stream=True,
        max_tokens=call.max_tokens,
        headers={_SESSION_HEADER: str(call.session)},
        fairness_id=call.tenant or DEFAULT_FAIRNESS_ID,
        priority=call.priority,
    )
