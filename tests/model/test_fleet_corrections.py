"""Books that an engine's reports contradict for long are corrected, and no others."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.model.endpoint import EndpointId, Target
from epp.model.events import BooksCorrected, EndpointRemoved
from epp.model.request import RequestId, Usage
from epp.model.request_events import (
    Aborted,
    Admitted,
    Finished,
    FirstToken,
    Generated,
    Served,
    Unobserved,
)
from tests.model.invariants import check_invariants, scheduled
from tests.model.rig import LONG, Rig
from tests.strategies import text

POD = EndpointId("default/pod-0")
SMALL = {"block_size": 16, "num_blocks": 1000}


class Ward(Rig):
    """Pods that report what they have, every 15 seconds, as `pages` would show it."""

    def __init__(self, pods=2, **more):
        super().__init__(pods)
        self.corrected = list[BooksCorrected]()
        self.guessed = list[tuple[str, bool]]()
        self.fleet.subscribe((BooksCorrected, Aborted), self._hear)
        self.more = {"counted": True, **more}
        for number in range(pods):
            self.page(f"pod-{number}", running=1)

    def _hear(self, event, _now, guessed):
        if isinstance(event, BooksCorrected):
            self.corrected.append(event)
        else:
            self.guessed.append((event.request_id, guessed))

    def page(self, name, **load):
        self.report(name, **{**SMALL, **self.more, **load, "at": self.now})

    def pass_by(self, seconds, names=("pod-0",), beside=lambda: None, **load):
        for _ in range(int(seconds / 15)):
            self.now += 15
            beside()
            for name in names:
                self.page(name, **load)

    def lost(self):
        return [(each.endpoint_id, list(each.requests)) for each in self.corrected]

    def held(self, name="pod-0"):
        pod = self.pod(name)
        return pod.ledger.requests, scheduled(pod.scheduler), pod.scheduler.held

    def leak(self, identity, name="pod-0"):
        """Forget a request that is in the books, as no code does."""
        del self.fleet.in_flight[RequestId(identity)]
        assert self.pod(name).ledger.requests


def test_a_request_of_which_nothing_is_heard_ends_where_its_endpoint_has_none():
    ward = Ward()
    ward.send("pod-0", "r1", LONG, stream=False)
    ward.send("pod-1", "r2", LONG, stream=False)
    ward.pass_by(330)
    assert ward.lost() == [(POD, ["r1"])]
    assert ward.guessed == [("r1", True)]
    assert ward.held() == (0, 0, 0.0)
    assert list(ward.fleet.in_flight) == ["r2"]
    check_invariants(ward.fleet)
    ward.apply(Finished(RequestId("r1"), Usage(1000, 5, 0)))  # if it was alive after all
    check_invariants(ward.fleet)


@pytest.mark.parametrize("waits", [False, True])
def test_what_is_in_no_list_of_requests_is_found_in_the_books(waits):
    ward = Ward()
    ward.send("pod-0", "r1", LONG)
    if waits:
        for number in range(40):
            ward.send("pod-0", f"w{number}", text(1000, str(number)))
    ward.leak("r1")
    ward.pass_by(330)
    (lost,) = ward.lost()
    assert "r1" in lost[1]
    assert ward.held() == (0, 0, 0.0)
    check_invariants(ward.fleet)
    ward.send("pod-0", "r2", LONG)
    assert ward.pod("pod-0").books.at(ward.now).running == 1


def test_what_was_sent_since_stays():
    ward = Ward()
    ward.send("pod-0", "lost", LONG, stream=False)
    ward.pass_by(270)
    assert ward.lost() == []
    ward.send("pod-0", "fresh", text(900, "f"), stream=False)
    at_both = ward.quote("at both", text(900, "b"), stream=False)
    ward.apply(Admitted(at_both, EndpointId("default/pod-1"), POD))
    ward.pass_by(60)
    assert ward.lost() == [(POD, ["lost"])]
    assert list(ward.fleet.in_flight) == ["fresh", "at both"]
    assert ward.held()[:2] == (2, 2)
    check_invariants(ward.fleet)


def test_light_traffic_between_idle_reports_keeps_nothing_in_the_books():
    ward = Ward(1)
    ward.send("pod-0", "lost", LONG)
    numbers = iter(range(1000))

    def serve():
        ward.serve("pod-0", f"r{next(numbers)}", text(300, "z"))
        ward.page("pod-0", running=1)

    ward.pass_by(330, beside=serve)
    assert ward.lost() == [(POD, ["lost"])]


def test_what_comes_from_a_slow_try_elsewhere_keeps_nothing_in_the_books():
    ward = Ward()
    ward.send("pod-0", "lost", LONG)
    numbers = iter(range(1000))

    def retry():
        name = RequestId(f"r{next(numbers)}")
        ward.send("pod-1", name, text(300, name))
        ward.pass_by(30)
        ward.apply(Served(name, Target("10.0.0.1:8000"), retried=True))
        ward.apply(FirstToken(name))
        ward.apply(Finished(name))

    ward.pass_by(330, beside=retry)
    assert ward.lost() == [(POD, ["lost"])]


def silent(ward):
    ward.send("pod-0", "r1", LONG, stream=False)


def streaming(ward):
    ward.send("pod-0", "r1", LONG)
    ward.apply(FirstToken(RequestId("r1")))


def unobserved(ward):
    ward.send("pod-0", "r1", LONG, max_tokens=10**6)
    ward.apply(Unobserved(RequestId("r1"), begun=True))


def for_another(ward):
    quote = ward.quote("r1", LONG, stream=False)
    ward.fleet.candidates(quote, ward.now)
    ward.apply(Admitted(quote, EndpointId("default/pod-1"), POD))


def elsewhere(ward):
    silent(ward)
    ward.apply(Served(RequestId("r1"), Target("10.0.0.2:8000")))


def progress(ward):
    tokens = iter(range(32, 10**6, 32))
    return lambda: ward.apply(Generated(RequestId("r1"), next(tokens)))


def nothing(_):
    return lambda: None


def another_one(ward):
    """Streams of its like come and go, and a page shows none of them."""
    numbers = iter(range(1000))

    def serve():
        name = f"s{next(numbers)}"
        ward.send("pod-0", name, text(200, name))
        for _ in range(3):
            ward.now += 10
            ward.page("pod-0")
        ward.apply(FirstToken(RequestId(name)))
        ward.apply(Finished(RequestId(name), Usage(200, 30, 0)))

    return serve


def whole_ones(ward):
    """Responses that come whole after half a minute, and a page shows none of them."""
    numbers = iter(range(1000))

    def serve():
        name = f"s{next(numbers)}"
        ward.send("pod-0", name, text(200, name), stream=False)
        ward.pass_by(30)
        ward.apply(Finished(RequestId(name), Usage(200, 30, 0)))

    return serve


HEALTHY = {
    "the report counts it": (silent, nothing, {"running": 1}),
    "it waits": (silent, nothing, {"waiting": 1}),
    "pages say nothing of requests": (silent, nothing, {"counted": False}),
    "a stream that goes on, whatever the page says": (streaming, progress, {}),
    "the page is wrong about others": (silent, another_one, {}),
    "the page is wrong about whole responses": (silent, whole_ones, {}),
    "the endpoint only computed its prompt": (for_another, nothing, {}),
    "it is at another endpoint": (elsewhere, nothing, {}),
}


@pytest.mark.parametrize(("send", "beside", "load"), HEALTHY.values(), ids=HEALTHY)
def test_a_request_that_may_be_alive_stays(send, beside, load):
    ward = Ward()
    send(ward)
    ward.pass_by(3000, beside=beside(ward), **load)
    assert ward.lost() == []
    assert "r1" in ward.fleet.in_flight
    check_invariants(ward.fleet)


def test_what_nobody_observes_ends_by_its_own_clock():
    ward = Ward()
    unobserved(ward)
    ward.pass_by(600)
    assert ward.lost() == []
    assert ward.fleet.in_flight == {}


def test_of_a_request_at_two_endpoints_both_must_say_so():
    ward = Ward()
    for_another(ward)
    ward.pass_by(600, names=("pod-0", "pod-1"))
    assert [requests for _, requests in ward.lost()] == [["r1"]]
    for name in ("pod-0", "pod-1"):
        assert ward.held(name) == (0, 0, 0.0)
    check_invariants(ward.fleet)


@pytest.mark.parametrize("stages", [(POD,), (None, POD), (POD, EndpointId("default/pod-2"))])
def test_an_endpoint_that_is_gone_need_not_say_so(stages):
    ward = Ward(3)
    ward.apply(Admitted(ward.quote("r1", LONG, stream=False), EndpointId("default/pod-1"), *stages))
    ward.apply(EndpointRemoved(POD))
    ward.pass_by(600, names=("pod-1", "pod-2"))
    assert [requests for _, requests in ward.lost()] == [["r1"]]
    assert ward.held("pod-1") == (0, 0, 0.0)
    check_invariants(ward.fleet)


def test_a_correction_that_is_told_ends_only_what_is_over_here():
    ward = Ward()
    silent(ward)
    ward.apply(BooksCorrected(POD, [RequestId("r1"), RequestId("unknown")]))
    ward.apply(BooksCorrected(EndpointId("default/gone"), [RequestId("r1")]))
    assert "r1" in ward.fleet.in_flight
    check_invariants(ward.fleet)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from((1.0, 40.0, 400.0, 4000.0)), st.booleans()),
        st.tuples(st.just("pages"), st.integers(1, 80), st.sampled_from((1.0, 15.0, 40.0))),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(steps=steps, late=st.floats(0, 9), shows=st.sampled_from((True, True, False)))
def test_engines_that_report_the_truth_late_or_nothing_lose_no_request(steps, late, shows):
    ward, alive, number = Ward(1, counted=shows), {}, 0
    for kind, first, second in steps:
        if kind == "send":
            ward.send("pod-0", f"r{number}", text(100, str(number)), stream=second)
            alive[f"r{number}"] = ward.now, ward.now + first
            number += 1
            continue
        for _ in range(first):
            ward.now += second
            for name, (_, until) in list(alive.items()):
                if until <= ward.now:
                    ward.apply(Finished(RequestId(name), Usage(100, 9, 0)))
                    del alive[name]
            then = ward.now - late
            running = sum(sent <= then for sent, _ in alive.values()) if shows else 0
            ward.page("pod-0", running=running)
    assert ward.lost() == []
    assert sorted(ward.fleet.in_flight) == sorted(alive)
    check_invariants(ward.fleet)
