"""Queues that others fill are seen in scrapes alone, and only as far as they are not ours."""

import pytest
from msgspec.structs import replace

from epp.model.endpoint import Endpoint, EndpointId, Load
from epp.model.events import EndpointUpserted, LoadReported, ScrapeFailed, ScrapeFailure
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


@pytest.mark.parametrize(("prompts", "n"), [(64, 1), (1, 16), (2, 4)])
def test_own_prompts_and_answers_that_wait_count_as_own(prompts: int, n: int):
    # vLLM makes a request of each prompt, and of each answer (`ParentRequest`).
    made, texts = fleet(), tuple(Prompt(f"{each:03}".encode() * 200) for each in range(prompts))
    sent = InferenceRequest(id=RequestId("own"), prompts=texts, n=n)
    made.apply(Admitted(made.quote(sent, 0), POD), 0)
    alone = owed(made, 0)
    waiting = float(prompts * n - 1)
    made.apply(LoadReported(POD, Load(waiting=waiting, running=1)), 0)
    assert owed(made, 0) == alone
    made.apply(Finished(RequestId("own")), 1)
    assert owed(made, 1) == 0
    made.apply(LoadReported(POD, Load(waiting=waiting)), 1)
    assert owed(made, 1) > 0


COPY = Load(waiting=20, running=12, counted=True, kv_usage=0.703, cache_queries=9, at=0)


def test_a_copy_of_a_page_starves_an_endpoint_for_a_minute():
    made = fleet()
    for at in range(61):
        made.apply(LoadReported(POD, replace(COPY, at=at)), at)
        assert (owed(made, at) > 0) is (at < 60)
    (candidate,) = made.candidates(quote(made, "probe"), 60)
    assert (candidate.waiting, candidate.running, candidate.kv_usage) == (0, 0, 0)
    assert candidate.load.at == 0
    made.apply(LoadReported(POD, replace(COPY, cache_queries=10, at=61)), 61)
    assert owed(made, 61) > 0


@pytest.mark.parametrize("counted", [True, False])  # Triton counts those that wait alone
@pytest.mark.parametrize(
    ("reason", "seconds"),
    [(ScrapeFailure.NO_PAGE, 10), (ScrapeFailure.BROKEN, 10), (ScrapeFailure.LATE, 60)],
)
def test_what_a_page_said_before_it_failed_does_not_count_for_long(
    reason: ScrapeFailure, seconds: float, *, counted: bool
) -> None:
    made = fleet()
    made.apply(LoadReported(POD, replace(COPY, counted=counted)), 0)
    for at in range(1, 90):
        made.apply(ScrapeFailed(POD, reason), at)
        assert (owed(made, at) > 0) is (at <= seconds)
