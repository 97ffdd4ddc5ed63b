"""The fleet: endpoints that fail or stall are left out, for a while, and never all of them."""

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.model.endpoint import ROLE_LABEL, EndpointId, Load, Target
from epp.model.events import (
    Ejected,
    EjectionReason,
    EndpointRemoved,
    LoadReported,
    Returned,
    ScrapeFailed,
    ScrapeFailure,
)
from epp.model.learning.prefill import PrefillModel
from epp.model.pods.in_flight import InFlightRequest
from epp.model.pods.outlier_detection import OutlierDetection, most_ejected
from epp.model.pods.outlier_settings import OUTLIERS, OutlierSettings
from epp.model.request import RequestId
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
from tests.model.rig import LONG, Rig
from tests.strategies import text

FAILURES, STALL = EjectionReason
REFUSED, BROKEN, LATE, NO_PAGE = ScrapeFailure


class Ward(Rig):
    """A rig that hears who is ejected and returned, by name."""

    def __init__(self, pods=3, **more):
        super().__init__(pods, **more)
        self.heard = []
        self.requests = count()
        self.fleet.subscribe((Ejected, Returned), self.hear)

    def hear(self, event, now, guessed):
        assert not guessed
        name = event.endpoint_id.partition("/")[2]
        self.heard.append((name, event.reason if isinstance(event, Ejected) else None))

    def fail(self, name, *, times=1, failure=Failure.GATEWAY, prompt=LONG, **more):
        """Have requests fail, one after the other."""
        for _ in range(times):
            identity = f"r{next(self.requests)}"
            self.send(name, identity, prompt, **more)
            self.now += 0.1
            self.apply(Aborted(RequestId(identity), refused=True, failure=failure))
        self.now += 0.1

    def succeed(self, name):
        self.now += 0.1
        self.serve(name, f"r{next(self.requests)}", LONG)

    def pass_over(self, name, prompt, *, retried=True):
        """Have a request be sent to one, and served by pod-1, at a second try or at the first."""
        identity = f"r{next(self.requests)}"
        self.now += 0.1
        self.send(name, identity, prompt)
        self.now += 0.1
        self.apply(Served(RequestId(identity), Target("10.0.0.2:8000"), retried=retried))
        self.apply(Finished(RequestId(identity)))

    @property
    def left(self):
        """Return the names of those that may be picked."""
        return "".join(name[-1] for name in self.ask(LONG))


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
    detection = OutlierDetection(ward.fleet.pods, OUTLIERS)
    for number in range(100):
        event = Aborted(RequestId(f"flying {number}"), failure=Failure.GATEWAY)
        assert detection.observe(event, in_flight, ward.now) == []
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
def test_prompts_of_less_than_a_block_are_told_apart(write, words, left):
    ward = Ward()
    for word in words:
        ward.fail("pod-0", failure=Failure.ERROR, prompt=write(word))
    assert ward.left == left


def test_a_failure_is_that_of_the_endpoint_that_served():
    ward = Ward()
    for number in range(5):
        ward.send("pod-0", f"r{number}", LONG)
        ward.apply(Served(RequestId(f"r{number}"), Target("10.0.0.2:8000")))
        ward.now += 0.1
        ward.apply(Aborted(RequestId(f"r{number}"), 0, True, Failure.GATEWAY, True))
    assert ward.left == "02"


@pytest.mark.parametrize(("known", "prompts", "left"), [(1, 5, "12"), (0, 9, "012"), (1, 1, "012")])
def test_an_endpoint_that_a_retrying_gateway_goes_past_is_left_out(known, prompts, left):
    # What fails there is served elsewhere. A new endpoint may not be known to the gateway yet.
    ward = Ward()
    ward.succeed("pod-1")
    for _ in range(known):
        ward.succeed("pod-0")
    for number in range(9):
        ward.pass_over("pod-0", text(400 + number % prompts))
    assert ward.left == left


@pytest.mark.parametrize(("works", "left"), [(False, "12"), (True, "012")])
def test_an_endpoint_that_is_only_slow_is_not_left_out_for_requests_that_are_hedged(works, left):
    # Envoy's `hedge_on_per_try_timeout`: who does not answer in time is asked further.
    ward = Ward()
    ward.succeed("pod-0")
    ward.report("pod-0", running=1, at=ward.now)
    for number in range(9):
        ward.send("pod-0", f"hedged {number}", text(400 + number))
        ward.now += 2
        ward.report("pod-0", running=1, kv_usage=number / 10 if works else 0.0, at=ward.now)
        ward.apply(Served(RequestId(f"hedged {number}"), Target("10.0.0.2:8000"), retried=True))
        ward.apply(Finished(RequestId(f"hedged {number}")))
    assert ward.left == left


def test_an_endpoint_that_fails_late_whatever_it_is_sent_is_left_out_though_it_shows_life():
    # It takes each request, allocates blocks, waits in vain for another server, and answers 500.
    ward = Ward()
    ward.succeed("pod-0")
    for number in range(15):
        ward.send("pod-0", f"late {number}", text(400 + number))
        for running in (1, 0):
            ward.now += 2
            ward.report("pod-0", running=running, kv_usage=running / 10, at=ward.now)
        ward.apply(Served(RequestId(f"late {number}"), Target("10.0.0.2:8000"), retried=True))
        ward.apply(Finished(RequestId(f"late {number}")))
    assert ward.left == "12"


def test_an_endpoint_that_a_gateway_does_not_even_try_is_not_left_out():
    # It has reasons of its own: with cookies for sessions, all but new clients go past a new pod.
    ward = Ward()
    ward.succeed("pod-0")
    for number in range(99):
        ward.pass_over("pod-0", text(400 + number), retried=False)
    assert ward.left == "012"


def test_who_serves_in_between_is_not_one_that_the_gateway_goes_past():
    ward = Ward()
    for number in range(9):
        if not number % 4:
            ward.succeed("pod-0")
        ward.pass_over("pod-0", text(400 + number))
    assert ward.left == "012"


def test_a_disaggregated_request_fails_at_the_decode_endpoint():
    ward = Ward()
    for number in range(5):
        quote = ward.quote(f"r{number}", LONG)
        decode, prefill = EndpointId("default/pod-0"), EndpointId("default/pod-1")
        ward.apply(Admitted(quote, decode, prefill))
        ward.now += 0.1
        ward.apply(Aborted(RequestId(f"r{number}"), refused=True, failure=Failure.GATEWAY))
    assert ward.left == "12"


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


def test_where_the_gateway_names_who_served_what_nobody_served_is_its_own():
    ward = Ward()
    ward.send("pod-0", "good", LONG)
    ward.apply(Served(RequestId("good"), Target("10.0.0.1:8000")))
    ward.apply(Finished(RequestId("good")))
    ward.fail("pod-0", times=9)
    assert ward.left == "012"


@pytest.mark.parametrize(("reason", "left"), [(REFUSED, "0123"), (LATE, "123"), (NO_PAGE, "123")])
def test_where_the_prefill_endpoint_is_gone_the_decode_endpoint_did_not_fail(reason, left):
    ward = Ward(4)
    for number in range(5):
        disaggregated(ward, f"r{number}")
        ward.now += 0.1
        ward.apply(Aborted(RequestId(f"r{number}"), refused=True, failure=Failure.GATEWAY))
    assert ward.left == "123"
    ward.apply(ScrapeFailed(EndpointId("default/pod-1"), reason))
    ward.report("pod-1")
    assert ward.left == left


def stages(prefill=2, decode=2):
    """Return a ward of prefill endpoints p-0, ... and decode endpoints d-0, ..."""
    ward = Ward(0)
    for role, endpoints in (("prefill", prefill), ("decode", decode)):
        for number in range(endpoints):
            name, address = f"{role[0]}-{number}", f"10.0.{number}.{ord(role[0])}"
            ward.add(name, address, labels={ROLE_LABEL: role})
    return ward


def pair(ward, prefill, decode, *, fails, prompt=None):
    """Have a request served by a prefill and a decode endpoint, or fail."""
    identity = RequestId(f"r{next(ward.requests)}")
    ward.now += 0.1
    quote = ward.quote(identity, prompt or text(next(ward.requests)))
    ward.apply(Admitted(quote, EndpointId(f"default/{decode}"), EndpointId(f"default/{prefill}")))
    ward.now += 0.1
    failed = Aborted(identity, refused=True, failure=Failure.ERROR)
    ward.apply(failed if fails else Finished(identity))


@pytest.mark.parametrize("decode", [1, 2])
def test_where_decode_endpoints_serve_others_the_failures_are_the_prefill_endpoints(decode):
    ward = stages(2, decode)
    for number in range(4):
        pair(ward, "p-0", f"d-{number % decode}", fails=True)
        pair(ward, "p-1", f"d-{number % decode}", fails=False)
    assert ward.heard == []
    pair(ward, "p-0", "d-0", fails=True)
    pair(ward, "p-1", "d-0", fails=False)
    assert ward.heard == [("p-0", FAILURES)]


@pytest.mark.parametrize("case", ["one prompt", "served since", "a row of its own", "the only one"])
def test_a_prefill_endpoint_is_not_left_out_for_what_others_may_have_done(case):
    ward = stages(1 if case == "the only one" else 2)
    prompt = LONG if case == "one prompt" else None
    for _ in range(9):
        for _ in range(5 if case == "a row of its own" else 1):
            pair(ward, "p-0", "d-0", fails=True, prompt=prompt)
        if case == "served since":
            pair(ward, "p-0", "d-1", fails=False)
        pair(ward, "p-1" if case != "the only one" else "p-0", "d-0", fails=False)
    assert "p-0" not in {name for name, _ in ward.heard}


def test_an_endpoint_is_not_left_out_for_what_another_of_its_name_did():
    ward = stages(2, 2)
    for decode in ("d-0", "d-1"):
        for _ in range(4):
            pair(ward, "p-0", decode, fails=True)
    ward.add("p-0", "10.0.0.9", uid="other", labels={ROLE_LABEL: "prefill"})
    for decode in ("d-0", "d-1"):
        pair(ward, "p-1", decode, fails=False)
    pair(ward, "p-0", "d-0", fails=True)
    pair(ward, "p-1", "d-0", fails=False)
    assert ward.heard == []
    assert ward.pod("p-0").outlier.failures == 1


@pytest.mark.parametrize(("alive", "share"), [(False, 0.5), (True, 0.0)])
def test_what_may_only_be_slow_is_no_failure_of_a_prefill_endpoint_either(alive, share):
    ward = stages()
    pair(ward, "p-0", "d-0", fails=False)
    quote = ward.quote("hedged", text(400))
    ward.apply(Admitted(quote, EndpointId("default/d-0"), EndpointId("default/p-0")))
    ward.now += 2
    if alive:
        ward.report("d-0", running=1, at=ward.now)
    ward.apply(Served(RequestId("hedged"), ward.pod("d-1").endpoint.target, retried=True))
    ward.apply(Aborted(RequestId("hedged")))
    pair(ward, "p-1", "d-0", fails=False)
    assert ward.pod("p-0").outlier.share(2) == share


def test_of_a_subset_that_is_left_out_all_are_asked():
    ward = Ward()
    ward.fail("pod-0", times=5)
    assert list(ward.ask(LONG, subset=("10.0.0.1:8000",))) == ["pod-0"]
    assert list(ward.ask(LONG, subset=("10.0.0.1:8000", "10.0.0.2"))) == ["pod-1"]


def test_who_fails_as_all_others_do_is_no_outlier():
    ward = Ward(4)
    for name in ("pod-0", "pod-1", "pod-2"):
        ward.fail(name, times=5)
    assert ward.left == "23"
    ward.fail("pod-3", times=5)  # the last that did not fail
    assert ward.left == "0123"
    for name in ("pod-0", "pod-1", "pod-2", "pod-3"):
        ward.fail(name, times=5)
    assert ward.left == "0123"
    for _ in range(100):  # and it no longer fails
        ward.succeed("pod-3")
    ward.fail("pod-0")
    assert ward.left == "123"


def test_an_only_endpoint_is_never_left_out():
    ward = Ward(1)
    ward.fail("pod-0", times=50)
    assert (ward.left, ward.heard) == ("0", [])


def test_roles_are_counted_apart():
    ward = Ward(0)
    for number in range(4):
        role = "prefill" if number < 2 else "decode"
        ward.add(f"pod-{number}", f"10.0.0.{number + 1}", labels={ROLE_LABEL: role})
    ward.fail("pod-0", times=5)
    ward.fail("pod-2", times=5)
    assert ward.left == "13"
    ward.fail("pod-3", times=5)  # the decode endpoints all fail
    assert ward.left == "123"


@pytest.mark.parametrize(
    "event",
    [
        EndpointRemoved(EndpointId("default/pod-1")),
        ScrapeFailed(EndpointId("default/pod-1"), ScrapeFailure.REFUSED),
    ],
)
def test_where_others_are_lost_those_left_out_return(event):
    ward = Ward(2)
    ward.fail("pod-0", times=5)
    assert ward.left == "1"
    ward.apply(event)
    assert ward.left == "0"
    assert ward.heard[-1] == ("pod-0", None)


def test_switched_off_nobody_is_left_out():
    ward = Ward(outliers=OutlierSettings(consecutive_failures=0))
    ward.fail("pod-0", times=50)
    hang(ward, "pod-0", 30)
    assert (ward.left, ward.heard) == ("012", [])


# Stalls.


def hang(ward, name, seconds, *, others=True):
    """Have an endpoint show the same figures for so long, while others go on."""
    for second in range(seconds):
        ward.now += 1.0
        for pod in ward.fleet.pods.values():
            running = 1.0 + (second % 2 if others and pod.endpoint.name != name else 0)
            ward.report(pod.endpoint.name, running=running, kv_usage=0.5)


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


def test_half_may_stall():
    ward = Ward(5)
    hang(ward, "pod-0", 2)
    for number in range(4):
        ward.send(f"pod-{number}", f"r{number}", LONG)
    for second in range(20):
        ward.now += 1.0
        for number in range(5):
            running = 1.0 + (second % 2 if number == 4 else 0)
            ward.report(f"pod-{number}", running=running, kv_usage=0.5)
    assert [reason for _, reason in ward.heard] == [STALL] * 2


def test_what_the_clock_guesses_is_no_sign_of_life():
    ward = Ward()
    hang(ward, "pod-0", 2)
    ward.send("pod-0", "left", LONG, max_tokens=100_000)
    ward.apply(FirstToken(RequestId("left")))
    ward.apply(Unobserved(RequestId("left"), begun=True))
    ward.send("pod-0", "lost", LONG)
    hang(ward, "pod-0", 17)
    assert ward.heard == [("pod-0", STALL)]


def disaggregated(ward, identity):
    decode, prefill = EndpointId("default/pod-0"), EndpointId("default/pod-1")
    ward.apply(Admitted(ward.quote(identity, LONG), decode, prefill))


def test_an_endpoint_that_computes_prompts_for_others_does_not_stall():
    ward = Ward(2)
    for number in (1, 2):
        ward.add(f"pod-{number}", f"10.0.0.{number + 1}", labels={ROLE_LABEL: "prefill"})
    hang(ward, "pod-1", 2)
    disaggregated(ward, "r1")
    hang(ward, "pod-1", 30)
    assert ward.heard == []


def test_a_first_token_is_a_success_of_both_endpoints():
    ward = Ward()
    ward.fail("pod-1", times=4)
    disaggregated(ward, "r-1")
    ward.apply(FirstToken(RequestId("r-1")))
    ward.fail("pod-1", times=4)
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


# Whatever happens.

NAMES = [f"pod-{number}" for number in range(5)]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("fail", "fail", "fail", "succeed", "send", "report", "lose", "remove")),
        st.sampled_from(NAMES),
        st.sampled_from(tuple(Failure)),
        st.integers(0, 7),
        st.sampled_from((0.0, 0.5, 20.0, 70.0)),
    ),
    max_size=60,
)


def take(ward, step):
    kind, name, failure, number, seconds = step
    ward.now += seconds
    if kind == "fail":
        ward.fail(name, failure=failure, prompt=text(400 + number), times=3)
    elif kind == "succeed":
        ward.succeed(name)
    elif kind == "send":
        ward.send(name, f"s{number}", text(900))
    elif kind == "report":
        ward.report(name, running=float(number % 2))
    elif kind == "lose":
        ward.apply(ScrapeFailed(EndpointId(f"default/{name}"), ScrapeFailure.REFUSED))
    elif number == 0:
        ward.apply(EndpointRemoved(EndpointId(f"default/{name}")))


@given(steps=STEPS, roles=st.booleans())
@settings(max_examples=60, deadline=None)
def test_never_more_than_the_share_are_left_out_and_all_return(steps, roles):
    ward = Ward(0)
    for number, name in enumerate(NAMES):
        labels = {ROLE_LABEL: "decode"} if roles and number % 2 else {}
        ward.add(name, f"10.0.0.{number + 1}", labels=labels)
    for step in steps:
        take(ward, step)
        for role in ("", "decode"):
            pods = [pod for pod in ward.fleet.pods.values() if pod.reachable]
            pods = [pod for pod in pods if pod.endpoint.labels.get(ROLE_LABEL, "") == role]
            out = [pod for pod in pods if pod.outlier.ejected]
            assert len(out) <= most_ejected(len(pods))
    ward.now += 301
    ward.ask(LONG)
    assert not any(pod.outlier.ejected for pod in ward.fleet.pods.values())


@given(
    tries=st.lists(st.tuples(st.sampled_from(NAMES), st.floats(0, 100)), min_size=1, max_size=60)
)
@settings(max_examples=30, deadline=None)
def test_one_bad_prompt_cannot_eject(tries):
    ward = Ward(5)
    for name, seconds in tries:
        ward.now += seconds
        ward.fail(name, failure=Failure.ERROR)
    assert ward.heard == []


@pytest.mark.parametrize("failure", Failure)
@pytest.mark.parametrize("row", [0, 5])
def test_one_that_may_not_be_ejected_refuses_requests_only_by_shedding_them(failure, row):
    rig = Rig(pods=1, outliers=OutlierSettings(consecutive_failures=row))
    for number in range(5):
        rig.send("pod-0", str(number), f"{number} {LONG}")
        rig.apply(Aborted(RequestId(str(number)), refused=True, failure=failure, served=True))
    refuses = rig.pod("pod-0").ledger.refuses_until > rig.now
    faults = {Failure.GATEWAY, Failure.EMPTY} if row else set()
    assert refuses is (failure in {Failure.BUSY, *faults})
