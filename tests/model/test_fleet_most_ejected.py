"""However many endpoints fail, some are left to be picked, and all return."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.model.endpoint import ROLE_LABEL, EndpointId
from epp.model.events import EndpointRemoved, ScrapeFailed, ScrapeFailure
from epp.model.pods.outlier_detection import most_ejected
from epp.model.pods.outlier_settings import OutlierSettings
from epp.model.request import RequestId
from epp.model.request_events import Aborted, Failure
from tests.model.rig import LONG, Rig
from tests.model.ward import STALL, Ward, hang
from tests.strategies import text


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
