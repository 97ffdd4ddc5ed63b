"""Queues that others fill are seen in scrapes alone, and only as far as they are not ours."""

from epp.model.endpoint import Endpoint, EndpointId, Load
from epp.model.events import EndpointUpserted, LoadReported
from epp.model.fleet import Fleet
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.quote import Quote
from epp.model.request import InferenceRequest, Prompt, RequestId
from epp.model.request_events import Admitted, Finished

POD = EndpointId("d/p")


def quote(made: Fleet, name: str) -> Quote:
    prompts = (Prompt(b"x" * 400),)
    return made.quote(InferenceRequest(id=RequestId(name), prompts=prompts, stream=True), 0)


def fleet() -> Fleet:
    made = Fleet(BlockHasher(b"secret"))
    made.apply(EndpointUpserted(Endpoint("d", "p", "10.0.0.1", 8000)), 0)
    return made


def owed(made: Fleet, now: float) -> float:
    (candidate,) = made.candidates(quote(made, "probe"), now)
    return candidate.queued_prefill_seconds


def test_waiting_requests_of_others_count_as_queued():
    made = fleet()
    made.apply(LoadReported(POD, Load(waiting=3)), 0)
    (candidate,) = made.candidates(quote(made, "probe"), 0)
    assert candidate.queued_prefill_seconds == 3 * candidate.prefill_seconds


def test_own_waiting_requests_count_once_and_not_after_their_end():
    made = fleet()
    made.apply(Admitted(quote(made, "own"), POD), 0)
    alone = owed(made, 0)
    made.apply(LoadReported(POD, Load(waiting=1)), 0)
    assert owed(made, 0) == alone
    made.apply(Finished(RequestId("own")), 1)
    assert owed(made, 1) == 0
