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
    """A call that was sent at `at` seconds; its response began at `began`, NaN before.

    `pod` is the number of the endpoint that it was sent to, -1 while there is none; before, it
    waited in the picker for `held` seconds. It came to the engine that has it at `came`;
    `prefilled` is what was done by another one before. `left`: nothing more of the response is
    observed than its first token.
    """

    number: int
    call: Call
    at: float
    picker: SimulatedPicker
    reusable: int
    came: float
    began: float = nan
    prefilled: Job | None = None
    left: bool = False
    held: float = 0.0
    pod: int = -1
    decision: Decision | None = None

    @property
    def request_id(self) -> RequestId:
        """The request's id: the call's number."""
        return RequestId(str(self.number))


def request_of(visit: Visit) -> InferenceRequest:
    """Return what the picker is asked."""
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
