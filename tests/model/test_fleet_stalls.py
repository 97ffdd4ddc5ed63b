"""An endpoint that shows no sign of life while a prefill is overdue is left out."""

import pytest

from epp.model.endpoint import ROLE_LABEL, EndpointId, Load
from epp.model.events import LoadReported, ScrapeFailed, ScrapeFailure
from epp.model.learning.prefill import PrefillModel
from epp.model.request import RequestId
from epp.model.request_events import Finished, FirstToken, Generated, Unobserved
from tests.model.rig import LONG
from tests.model.ward import BROKEN, LATE, NO_PAGE, STALL, Ward, disaggregated, hang


def stalled(*, others=True, seconds=20, **more):
    ward = Ward()
    hang(ward, "pod-0", 2)
    ward.send("pod-0", "lost", LONG, **more)
    hang(ward, "pod-0", seconds, others=others)
    return ward


def test_an_endpoint_that_shows_no_life_is_left_out():
    assert stalled(seconds=14).left == "012"
    ward = stalled(seconds=20)
    assert (ward.left, ward.heard) == ("12", [("pod-0", STALL)])


@pytest.mark.parametrize(
    "event",
    [
        FirstToken(RequestId("lost")),
        Finished(RequestId("lost")),
        Generated(RequestId("lost"), 32),
        LoadReported(EndpointId("default/pod-0"), Load(running=0.0, kv_usage=0.4, counted=True)),
    ],
)
def test_it_is_back_with_the_first_sign_of_life(event):
    ward = stalled()
    ward.apply(event)
    assert (ward.left, ward.heard[1:]) == ("012", [("pod-0", None)])


@pytest.mark.parametrize(("reason", "queries"), [(None, 5.0), (ScrapeFailure.LATE, None)])
def test_what_does_not_count_any_more_is_no_sign_of_life(reason, queries):
    """Requests of others that do not go on for a minute, or a page that is late for one."""
    ward = Ward()
    for second in range(150):
        ward.now += 1.0
        if second == 2:
            ward.send("pod-0", "lost", LONG)
        for name in ("pod-1", "pod-2"):
            ward.report(name, running=second % 2, kv_usage=0.5)
        if reason is None or second < 30 or second == 100:
            page = {"running": 12, "kv_usage": 0.503, "cache_queries": queries}
            ward.report("pod-0", **page, at=ward.now)
        else:
            ward.apply(ScrapeFailed(EndpointId("default/pod-0"), reason))
    assert ward.heard == [("pod-0", STALL)]


def test_it_is_back_once_a_response_begins_of_which_it_computed_the_prompt():
    ward = Ward()
    hang(ward, "pod-1", 2)
    ward.send("pod-1", "lost", LONG)
    disaggregated(ward, "r1")
    hang(ward, "pod-1", 20)
    ward.apply(FirstToken(RequestId("r1")))
    assert ward.heard == [("pod-1", STALL), ("pod-1", None)]


def test_without_any_it_is_tried_after_five_minutes():
    ward = stalled()
    hang(ward, "pod-0", 290)
    assert ward.left == "12"
    hang(ward, "pod-0", 15)
    assert ward.left == "012"


def test_when_it_is_tried_again_it_has_its_time_whatever_is_overdue():
    ward = stalled()
    hang(ward, "pod-0", 280)
    ward.send("pod-0", "lost too", LONG)
    hang(ward, "pod-0", 30)
    assert ward.heard[1:] == [("pod-0", None)]
    hang(ward, "pod-0", 10)
    assert ward.heard[2:] == [("pod-0", STALL)]


def test_a_long_prompt_may_take_three_times_as_long_as_predicted():
    ids = list(range(100_000))
    seconds = PrefillModel().seconds(len(ids), 0)
    assert 5 < seconds < 15
    ward = Ward()
    hang(ward, "pod-0", 2)
    ward.send("pod-0", "long", ids)
    hang(ward, "pod-0", int(4 * seconds) - 2)
    assert ward.heard == []
    hang(ward, "pod-0", 4)
    assert ward.heard == [("pod-0", STALL)]


def test_an_endpoint_that_sleeps_does_not_stall():
    ward = Ward()
    hang(ward, "pod-0", 2)
    ward.send("pod-0", "kept", LONG)
    for second in range(30):
        ward.now += 1.0
        ward.report("pod-0", awake=False, running=1.0, kv_usage=0.5)
        ward.report("pod-1", running=1.0 + second % 2, kv_usage=0.5)
    hang(ward, "pod-0", 14)
    assert (ward.left, ward.heard) == ("012", [])
    hang(ward, "pod-0", 6)
    assert ward.heard == [("pod-0", STALL)]


def test_what_the_clock_guesses_is_no_sign_of_life():
    ward = Ward()
    hang(ward, "pod-0", 2)
    ward.send("pod-0", "left", LONG, max_tokens=100_000)
    ward.apply(FirstToken(RequestId("left")))
    ward.apply(Unobserved(RequestId("left"), begun=True))
    ward.send("pod-0", "lost", LONG)
    hang(ward, "pod-0", 17)
    assert ward.heard == [("pod-0", STALL)]


def test_an_endpoint_that_computes_prompts_for_others_does_not_stall():
    ward = Ward(2)
    for number in (1, 2):
        ward.add(f"pod-{number}", f"10.0.0.{number + 1}", labels={ROLE_LABEL: "prefill"})
    hang(ward, "pod-1", 2)
    disaggregated(ward, "r1")
    hang(ward, "pod-1", 30)
    assert ward.heard == []


def test_a_fleet_that_is_slow_is_not_left_out():
    assert stalled(others=False, seconds=55).left == "012"


def test_a_response_whose_first_token_is_not_seen_says_nothing():
    assert stalled(stream=False, seconds=55).left == "012"


def test_an_endpoint_whose_page_is_late_is_left_out_where_its_answers_are_as_well():
    for reason, left in ((LATE, "12"), (BROKEN, "12"), (NO_PAGE, "012")):
        ward = Ward()
        hang(ward, "pod-0", 2)
        ward.send("pod-0", "lost", LONG)
        for second in range(20):
            ward.now += 1.0
            ward.report("pod-1", running=float(second % 2))
            ward.apply(ScrapeFailed(EndpointId("default/pod-0"), reason))
        assert ward.left == left
        assert ward.heard == ([("pod-0", STALL)] if reason is LATE else [])
        if reason is LATE:
            ward.apply(FirstToken(RequestId("lost")))
            assert ward.left == "012"


def test_an_endpoint_that_answers_is_not_left_out_however_late_its_page():
    ward = Ward()
    for second in range(200):
        ward.send("pod-0", f"r{second}", LONG)
        ward.now += 1.0
        ward.report("pod-1", running=float(second % 2))
        ward.apply(ScrapeFailed(EndpointId("default/pod-0"), LATE))
        if second >= 10:
            ward.apply(FirstToken(RequestId(f"r{second - 10}")))
    assert ward.heard == []


def test_a_scrape_that_stops_is_no_stall():
    ward = Ward()
    hang(ward, "pod-0", 2)
    ward.send("pod-0", "lost", LONG)
    for second in range(30):
        ward.now += 1.0
        ward.report("pod-1", running=float(second % 2))
    assert (ward.left, ward.heard) == ("012", [])


def test_an_endpoint_that_goes_on_with_others_does_not_stall():
    ward = Ward()
    ward.send("pod-0", "other", LONG)
    ward.apply(FirstToken(RequestId("other")))
    ward.send("pod-0", "late", LONG)
    for tokens in range(32, 2_000, 32):
        hang(ward, "pod-0", 1)
        ward.apply(Generated(RequestId("other"), tokens))
    assert ward.heard == []
