"""An endpoint that fails several times in a row is left out for a while."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.model.pods.in_flight import InFlightRequest
from epp.model.pods.outlier_detection import OutlierDetection
from epp.model.pods.outlier_settings import OUTLIERS, OutlierSettings
from epp.model.request import RequestId
from epp.model.request_events import Aborted, Failure, Finished, FirstToken, Unobserved
from tests.model.rig import LONG
from tests.model.ward import FAILURES, Ward, hang
from tests.strategies import text


class Asked(dict[RequestId, InFlightRequest]):
    """Requests in flight that count how often they are asked for."""

    count = 0

    def get(self, *key):
        self.count += 1
        return super().get(*key)

    def __getitem__(self, key):
        self.count += 1
        return super().__getitem__(key)

    def __contains__(self, key):
        self.count += 1
        return super().__contains__(key)


def test_what_is_in_flight_where_it_is_ejected_is_gone_through_for_no_failure_more():
    ward = Ward()
    for number in range(100):
        ward.send("pod-0", f"flying {number}", LONG)
    ward.fail("pod-0", times=6)
    assert ward.left == "12"
    in_flight = Asked(ward.fleet.in_flight)
    detection = OutlierDetection(ward.fleet.pods, in_flight, OUTLIERS)
    for number in range(100):
        event = Aborted(RequestId(f"flying {number}"), failure=Failure.GATEWAY)
        assert detection.observe(event, ward.now) == []
    assert in_flight.count <= 200


def test_five_failures_in_a_row_eject_an_endpoint_for_half_a_minute():
    ward = Ward()
    ward.fail("pod-0", times=4)
    assert ward.left == "012"
    ward.fail("pod-0")
    assert (ward.left, ward.heard) == ("12", [("pod-0", FAILURES)])
    assert [ready for _, _, ready in ward.fleet.loads()] == [False, True, True]
    ward.now += 29.8
    assert ward.left == "12"
    ward.now += 0.2
    assert ward.left == "012"
    assert ward.heard[1:] == [("pod-0", None)]


def test_after_its_return_one_more_failure_is_enough_until_a_request_is_served():
    ward = Ward()
    ward.fail("pod-0", times=5)
    ward.now += 31
    assert ward.left == "012"
    ward.fail("pod-0")
    assert ward.left == "12"
    ward.now += 59
    assert ward.left == "12"
    ward.now += 2
    ward.succeed("pod-0")
    ward.fail("pod-0", times=4)
    assert ward.left == "012"


@pytest.mark.parametrize("between", [FirstToken, Finished])
def test_a_success_in_between_begins_anew(between):
    ward = Ward()
    ward.fail("pod-0", times=4)
    ward.send("pod-0", "good", LONG)
    ward.apply(between(RequestId("good")))
    ward.fail("pod-0", times=4)
    assert ward.left == "012"
    ward.fail("pod-0")
    assert ward.left == "12"


def test_a_response_that_is_left_with_a_good_head_is_a_success():
    ward = Ward()
    for begun, left in ((True, "012"), (False, "12")):
        ward.fail("pod-0", times=4)
        ward.send("pod-0", "good", LONG, stream=False)
        ward.apply(Unobserved(RequestId("good"), begun=begun))
        ward.fail("pod-0", times=1)
        assert ward.left == left


def test_the_end_of_an_old_stream_is_no_success():
    ward = Ward()
    ward.send("pod-0", "old", LONG)
    ward.apply(FirstToken(RequestId("old")))
    ward.now += 1
    ward.fail("pod-0", times=4)
    ward.apply(Finished(RequestId("old")))
    ward.fail("pod-0")
    assert ward.left == "12"


@pytest.mark.parametrize(
    ("failure", "prompts", "left"),
    [
        (None, 20, "012"),  # the client's: 4xx, or it left
        (Failure.BUSY, 20, "012"),
        (Failure.ERROR, 1, "012"),
        (Failure.ERROR, 4, "012"),
        (Failure.ERROR, 5, "12"),
        (Failure.EMPTY, 1, "12"),
        (Failure.GATEWAY, 1, "12"),
    ],
)
def test_what_counts(failure, prompts, left):
    ward = Ward()
    for number in range(20):
        ward.fail("pod-0", failure=failure, prompt=text(400 + number % prompts))
    assert ward.left == left


@pytest.mark.parametrize("write", [lambda word: word, lambda word: list(map(ord, word))])
@pytest.mark.parametrize(
    ("words", "left"), [(("help", "stop", "what", "when", "tell"), "12"), (("help",) * 9, "012")]
)
@pytest.mark.parametrize("times", [1, 4])
def test_prompts_of_less_than_a_block_or_of_one_are_told_apart(write, words, left, times):
    ward = Ward()
    for word in words:
        ward.fail("pod-0", failure=Failure.ERROR, prompt=write(word * times))
    assert ward.left == left


def test_an_error_does_not_count_if_the_prompt_is_not_known():
    ward = Ward()
    for number in range(20):
        ward.send("pod-0", f"r{number}")
        ward.now += 0.1
        ward.apply(Aborted(RequestId(f"r{number}"), refused=True, failure=Failure.ERROR))
    assert ward.left == "012"


def test_what_is_not_answered_yet_may_be_good():
    ward = Ward()
    for number in range(20):
        ward.send("pod-0", f"slow{number}", LONG, stream=False)
        ward.now += 0.1
        ward.fail("pod-0")
    assert ward.left == "012"
    for number in range(20):
        ward.apply(Finished(RequestId(f"slow{number}")))
    ward.fail("pod-0", times=3)
    assert ward.left == "012"
    ward.fail("pod-0")  # the last of the twenty, and these four, were in a row
    assert ward.left == "12"


def test_it_takes_a_longer_row_if_all_others_fail_now_and_then():
    ward = Ward()
    for _ in range(30):
        for name in ("pod-1", "pod-2"):
            ward.fail(name)
            ward.succeed(name)
    ward.fail("pod-0", times=10)
    assert ward.heard == []
    ward.fail("pod-0", times=10)  # as likely at one failure in two as five in a row at one in ten
    assert ward.heard == [("pod-0", FAILURES)]


def test_switched_off_nobody_is_left_out():
    ward = Ward(outliers=OutlierSettings(consecutive_failures=0))
    ward.fail("pod-0", times=50)
    ward.send("pod-0", "lost", LONG)
    hang(ward, "pod-0", 30)
    assert (ward.left, ward.heard) == ("012", [])
    ward.succeed("pod-0")  # which flow control asks for
    assert ward.pod("pod-0").outlier.alive_at == ward.now


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 100)), min_size=1, max_size=60))
@settings(max_examples=30, deadline=None)
def test_one_bad_prompt_cannot_eject(tries):
    ward = Ward(5)
    for number, seconds in tries:
        ward.now += seconds
        ward.fail(f"pod-{number}", failure=Failure.ERROR)
    assert ward.heard == []
