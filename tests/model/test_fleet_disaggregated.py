"""The fleet: requests whose prompt one endpoint computes and another one answers."""

import pytest

from epp.model.endpoint import EndpointId, Load, Target
from epp.model.events import EndpointRemoved, LoadReported
from epp.model.learning.prefill import PrefillModel
from epp.model.pods.pace import PaceClass
from epp.model.request import RequestId, Usage
from epp.model.request_events import (
    Aborted,
    Admitted,
    Failure,
    Finished,
    FirstToken,
    Generated,
    Served,
    Unobserved,
)
from tests.model.invariants import check_invariants
from tests.model.rig import LONG, Rig, predicted
from tests.strategies import text

R1 = RequestId("r1")
PREFILL, DECODE = EndpointId("default/pod-0"), EndpointId("default/pod-1")
SECONDS = PrefillModel().seconds(1000, 0)


def disaggregated(pods=3, **more):
    """Prefill at pod-0, decode at pod-1."""
    rig = Rig(pods)
    rig.apply(Admitted(rig.quote("r1", LONG, **more), DECODE, PREFILL))
    return rig


def requests(rig):
    return [each.requests for each in rig.ask().values()]


def queued(rig):
    return [pytest.approx(seconds) for seconds in rig.queued_seconds().values()]


def test_the_prompt_is_computed_at_one_and_held_by_both():
    rig = disaggregated()
    assert queued(rig) == [SECONDS, 0, 0]
    assert requests(rig) == [1, 1, 0]
    assert rig.ask()["pod-0"].in_flight_tokens == 1000
    assert rig.ask()["pod-1"].in_flight_tokens == 0
    parts = rig.in_flight("r1").parts
    assert [(each.pod.endpoint.id, each.unprefilled) for each in parts] == [
        (DECODE, 0),
        (PREFILL, 1000),
    ]
    held = predicted(1000)
    assert rig.cached(LONG) == {"pod-0": held, "pod-1": held, "pod-2": 0}
    check_invariants(rig.fleet)


def test_what_the_endpoint_has_cached_counts_where_the_prompt_is_computed():
    rig = Rig(2)
    rig.serve("pod-0", "r0", LONG)
    rig.now += 10
    before = rig.ask(LONG)["pod-0"]
    rig.apply(Admitted(rig.quote("r1", LONG), DECODE, PREFILL))
    assert queued(rig) == [before.prefill_seconds, 0]
    assert before.prefill_seconds < SECONDS


@pytest.mark.parametrize(
    ("sign", "begun"),
    [
        (FirstToken(R1), [1, 1, 0]),
        (Generated(R1, 1), [1, 1, 0]),
        (Finished(R1, Usage(1000, 9, 0)), [1, 1, 0]),
        (Aborted(R1, 1), [1, 1, 0]),
        (Aborted(R1, refused=True), [0, 0, 0]),
        (Aborted(R1), [0, 0, 0]),
    ],
)
def test_a_response_begins_once_at_each_endpoint_that_it_is_of(sign, begun):
    rig = disaggregated()
    rig.apply(sign)
    rig.apply(Finished(R1, Usage(1000, 9, 0)))
    assert [pod.ledger.begun for pod in rig.fleet.pods.values()] == begun


@pytest.mark.parametrize("sign", [FirstToken(R1), Generated(R1, 1)])
def test_the_first_token_releases_where_the_prompt_was_computed(sign):
    rig = disaggregated()
    rig.apply(sign)
    assert queued(rig) == [0, 0, 0]
    assert requests(rig) == [0, 1, 0]
    assert rig.cached(LONG)["pod-0"] == predicted(1000)
    assert rig.pod("pod-1").ledger.count_prefilling(rig.now) == 0
    rig.apply(Finished(R1))
    assert requests(rig) == [0, 0, 0]


def test_prompts_that_are_computed_elsewhere_hold_up_no_step():
    rig, ids = Rig(2), [RequestId(f"{number}") for number in range(42)]
    for number in range(40):  # one decodes while the prompt of the next is computed
        rig.apply(Admitted(rig.quote(ids[number + 2], text(500, ids[number])), DECODE, PREFILL))
        rig.apply(FirstToken(ids[number + 1]))
        rig.apply(Finished(ids[number], Usage(500, 101, 0)))
        rig.now += 2.0
    assert rig.pod("pod-1").pace.step_seconds(1.0, 500) == pytest.approx(0.02, rel=0.1)


def test_no_token_yet_releases_nothing():
    rig = disaggregated()
    rig.apply(Generated(R1, 0))
    assert requests(rig) == [1, 1, 0]


@pytest.mark.parametrize("end", [Finished(R1, Usage(1000, 20, 0)), Aborted(R1, 1)])
def test_an_end_releases_both(end):
    rig = disaggregated(stream=False)
    rig.apply(end)
    assert requests(rig) == [0, 0, 0]
    assert queued(rig) == [0, 0, 0]
    held = predicted(1000)
    assert rig.cached(LONG) == {"pod-0": held, "pod-1": held, "pod-2": 0}


@pytest.mark.parametrize(("share", "held"), [(0.0, (0, 0)), (0.5, (0.5, 0)), (1.0, (1, 1))])
def test_of_a_prompt_that_breaks_off_the_part_is_cached_where_it_was_computed(share, held):
    """The decode endpoint gets the blocks once all are computed."""
    rig, ids = Rig(3), list(range(64 * 16))
    rig.apply(Admitted(rig.quote("r1", ids, stream=False), DECODE, PREFILL))
    rig.now += rig.queued_seconds()["pod-0"] * share * 1.001
    rig.apply(Aborted(R1))
    assert [rig.cached([*ids, 7])[name] for name in ("pod-0", "pod-1")] == [
        each * len(ids) for each in held
    ]
    assert requests(rig) == [0, 0, 0]
    check_invariants(rig.fleet)


def test_a_refused_request_leaves_nothing_behind():
    rig = disaggregated()
    rig.apply(Aborted(R1, refused=True))
    assert requests(rig) == [0, 0, 0]
    assert rig.cached(LONG) == {"pod-0": 0, "pod-1": 0, "pod-2": 0}


def test_a_request_that_is_sent_again_leaves_both():
    rig = disaggregated()
    rig.apply(Admitted(rig.quote("r1", LONG), EndpointId("default/pod-2")))
    assert requests(rig) == [0, 0, 1]
    assert rig.cached(LONG) == {"pod-0": 0, "pod-1": 0, "pod-2": predicted(1000)}


@pytest.mark.parametrize("gone", [PREFILL, DECODE])
def test_a_removed_endpoint_takes_its_part_along(gone):
    rig = disaggregated()
    rig.apply(EndpointRemoved(gone))
    check_invariants(rig.fleet)
    assert sum(requests(rig)) == 1
    rig.apply(FirstToken(R1))
    rig.apply(Finished(R1))
    assert requests(rig) == [0, 0]
    check_invariants(rig.fleet)


def test_another_endpoint_than_the_one_picked_may_serve_it():
    rig = disaggregated()
    rig.apply(Served(R1, Target("10.0.0.3:8000")))
    assert requests(rig) == [1, 0, 1]
    assert queued(rig) == [SECONDS, 0, 0]
    assert rig.cached(LONG)["pod-1"] == 0


def test_where_the_prefill_endpoint_serves_it_does_all():
    rig = disaggregated()
    rig.apply(Served(R1, Target("10.0.0.1:8000")))
    assert requests(rig) == [1, 0, 0]
    assert queued(rig) == [SECONDS, 0, 0]
    rig.apply(FirstToken(R1))
    assert requests(rig) == [1, 0, 0]
    check_invariants(rig.fleet)


@pytest.mark.parametrize("prefill", [None, DECODE, EndpointId("default/unknown")])
def test_without_another_endpoint_the_one_picked_does_all(prefill):
    rig = Rig(2)
    rig.apply(Admitted(rig.quote("r1", LONG), DECODE, prefill))
    assert queued(rig) == [0, SECONDS]
    assert requests(rig) == [0, 1]


def test_the_speed_of_prefill_is_learned_where_it_ran():
    rig = disaggregated()
    rig.pod("pod-0").relabel(rig.pod("pod-0").endpoint, learned := PaceClass())
    rig.now += 3.0
    rig.apply(FirstToken(R1))
    assert learned.prefill.seconds(1000, 0) > SECONDS
    assert rig.pod("pod-1").speed.prefill.seconds(1000, 0) == SECONDS


def test_a_first_token_that_waits_where_it_is_answered_says_nothing_of_prefill():
    rig = disaggregated()
    rig.report("pod-1", waiting=2)
    rig.now += 3.0
    rig.apply(FirstToken(R1))
    assert rig.pod("pod-0").speed.prefill.seconds(1000, 0) == SECONDS
    assert queued(rig)[0] == 0
    assert requests(rig)[:2] == [0, 1]


def test_cached_tokens_are_compared_with_neither_cache():
    # The sidecar's `nixlv2` reports the prefill engine's, other connectors the decoder's.
    rig = disaggregated()
    for _ in range(5):
        rig.apply(Finished(R1, Usage(1000, 5, 0)))
        rig.apply(Admitted(rig.quote("r1", LONG), DECODE, PREFILL))
    assert [each.trust for each in rig.ask().values()] == [1, 1, 1]
    assert rig.cached(LONG)["pod-1"] > 0


def test_a_request_that_its_decoder_does_not_have_yet_is_not_taken_for_over():
    rig = Rig(2)
    rig.send("pod-1", "r0", "short", max_tokens=1000)
    rig.apply(FirstToken(RequestId("r0")))
    rig.apply(Unobserved(RequestId("r0")))
    rig.apply(Admitted(rig.quote("r1", LONG), DECODE, PREFILL))
    rig.now += 0.1
    rig.apply(LoadReported(DECODE, Load(waiting=0, running=1, at=rig.now)))
    assert requests(rig) == [1, 2]


ENCODE = EndpointId("default/pod-2")


def encoded(prefill=PREFILL, encode=ENCODE, **more):
    """Images at pod-2, prefill at pod-0 unless it is told otherwise, decode at pod-1."""
    rig = Rig(3)
    rig.apply(Admitted(rig.quote("r1", LONG, **more), DECODE, prefill, encode))
    return rig


@pytest.mark.parametrize(("prefill", "before"), [(PREFILL, [1, 1, 1]), (None, [0, 1, 1])])
@pytest.mark.parametrize("sign", [FirstToken(R1), Generated(R1, 1)])
def test_the_first_token_releases_where_images_were_encoded(prefill, before, sign):
    rig = encoded(prefill)
    assert requests(rig) == before
    assert queued(rig)[2] == pytest.approx(0)
    assert [each.in_flight_tokens for each in rig.ask().values()][2] == 0
    assert rig.cached(LONG)["pod-2"] == 0
    check_invariants(rig.fleet)
    rig.apply(sign)
    assert requests(rig) == [0, 1, 0]
    rig.apply(Finished(R1))
    assert requests(rig) == [0, 0, 0]
    assert [pod.ledger.begun for pod in rig.fleet.pods.values()][1:] == [1, 1]
    check_invariants(rig.fleet)


@pytest.mark.parametrize(
    "end",
    [
        Finished(R1, Usage(1000, 20, 0)),
        Aborted(R1),
        Aborted(R1, refused=True),
        EndpointRemoved(ENCODE),
    ],
)
def test_an_end_releases_where_images_were_encoded(end):
    rig = encoded(stream=False)
    encoder = rig.pod("pod-2")
    rig.apply(end)
    rig.apply(Finished(R1))
    assert encoder.ledger.requests == sum(requests(rig)) == 0
    check_invariants(rig.fleet)


def test_refusals_count_for_the_endpoints_that_prefill_and_decode():
    rig = encoded()
    for _ in range(5):
        rig.apply(Aborted(R1, refused=True, failure=Failure.BUSY, served=True))
        rig.apply(Admitted(rig.quote("r1", LONG), DECODE, PREFILL, ENCODE))
    assert [pod.ledger.refuses for pod in rig.fleet.pods.values()] == [True, True, False]


@pytest.mark.parametrize("encode", [PREFILL, DECODE, EndpointId("default/unknown")])
def test_an_endpoint_that_encodes_for_itself_has_the_request_once(encode):
    rig = encoded(encode=encode)
    assert requests(rig) == [1, 1, 0]
    check_invariants(rig.fleet)


def test_where_the_encode_endpoint_serves_it_does_all():
    rig = encoded()
    rig.apply(Served(R1, Target("10.0.0.3:8000")))
    assert requests(rig) == [0, 0, 1]
    assert queued(rig) == [0, 0, SECONDS]
    check_invariants(rig.fleet)


@pytest.mark.parametrize("prefill", [PREFILL, None])
@pytest.mark.parametrize("seconds", [0.0, 10.0])
def test_a_prefill_that_waits_for_an_encoding_holds_up_no_others_and_teaches_nothing(
    prefill, seconds
):
    rig = encoded(prefill)
    other = text(3000, "other")
    before = [each.prefill_seconds for each in rig.ask(other).values()]
    rig.now += SECONDS / 2
    assert sum(rig.queued_seconds().values()) == pytest.approx(SECONDS / 2)
    if seconds:
        rig.now += seconds
        assert queued(rig) == [0, 0, 0]
    rig.apply(FirstToken(R1))
    rig.apply(Finished(R1, Usage(1000, 20, 0)))
    assert [each.prefill_seconds for each in rig.ask(other).values()] == before


@pytest.mark.parametrize(("begun", "parts"), [(disaggregated, [1, 1, 0]), (encoded, [1, 1, 1])])
def test_unobserved_the_stages_before_end_when_tokens_are_expected(begun, parts):
    rig = begun()
    rig.apply(Unobserved(R1))
    assert requests(rig) == parts
    rig.now += SECONDS + 2.0
    assert requests(rig) == [0, 1, 0]
    check_invariants(rig.fleet)
