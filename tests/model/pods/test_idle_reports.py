"""When reports without requests show that a request is over, and when they do not."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.endpoint import Load
from epp.model.pods.idle_reports import IdleReports


def idle(at, **more):
    return Load(**{"counted": True, "at": at, **more})


BUSY = idle(0, running=1)


def after(loads, heard=()):
    """Take in reports as they come, and signs of life (heard before at, at) once they are due."""
    reports, left = IdleReports(), sorted(heard, key=lambda one: one[1])
    for load in loads:
        while left and left[0][1] <= load.at:
            reports.record_activity(left.pop(0)[0])
        reports.report(load)
    for before, _ in left:
        reports.record_activity(before)
    return reports


def every(seconds, start, count, **more):
    return [idle(start + seconds * number, **more) for number in range(count)]


CASES = {
    "ten reports, half a minute apart": ([BUSY, *every(30, 30, 10)], (), 20.0),
    "nine": ([BUSY, *every(30, 30, 9)], (), -inf),
    "scraped once a second, for five minutes": ([BUSY, *every(1, 30, 271)], (), 20.0),
    "scraped once a second, not so long": ([BUSY, *every(1, 30, 270)], (), -inf),
    "the ten of the last minutes count": ([BUSY, *every(30, 30, 14)], (), 140.0),
    "busy moments in between": (
        [
            BUSY,
            *(each for at in range(30, 600, 60) for each in (idle(at), idle(at + 5, running=3))),
        ],
        (),
        20.0,
    ),
    "an endpoint that never reported a request": (every(30, 30, 40), (), -inf),
    "one that reports what waits, and not what runs": (
        [idle(0, waiting=3), *every(30, 30, 40)],
        (),
        -inf,
    ),
    "pages that lack the numbers": ([BUSY, *every(30, 30, 40, counted=False)], (), -inf),
    "something waits": ([BUSY, *every(30, 30, 40, waiting=1)], (), -inf),
    "something runs": ([BUSY, *every(30, 30, 40, running=0.5)], (), -inf),
    "the same report over and over": ([BUSY, *[idle(30)] * 40], (), -inf),
    "reports that come the other way round": ([BUSY, *reversed(every(30, 30, 40))], (), -inf),
    "a request that was missing in them": (
        [BUSY, *every(30, 30, 12)],
        [(25.0, 200.0)],
        -inf,
    ),
    "such a request, and reports twice as far apart since": (
        [BUSY, *every(30, 30, 26)],
        [(25.0, 200.0)],
        200.0,
    ),
    "a request that was sent just before": ([BUSY, *every(30, 30, 12)], [(198.0, 200.0)], 80.0),
    "a request that is heard all the time": (
        [BUSY, *every(30, 30, 12)],
        [(at - 5.0, at) for at in range(20, 400, 5)],
        80.0,
    ),
    "a request that was missing in a report that does not count": (
        [BUSY, *every(30, 30, 12), idle(375)],
        [(362.0, 376.0)],
        -inf,
    ),
}


@pytest.mark.parametrize(("loads", "heard", "over_before"), CASES.values(), ids=CASES)
def test_cases(loads, heard, over_before):
    assert after(loads, heard).over_before == over_before


@given(
    st.lists(st.floats(0, 5000), max_size=200).map(sorted),
    st.floats(0, 4000),
    st.floats(0, 10),
)
def test_no_request_is_over_that_a_late_page_may_lack(times, sent, late):
    """A page shows an engine as it was some seconds ago; the request runs to the end of time."""
    reports = IdleReports()
    reports.report(idle(0, running=1))
    for at in times:
        runs = at - late >= sent
        reports.report(idle(at, running=1.0 if runs else 0.0))
        assert not reports.over_before > sent


@given(
    st.lists(st.floats(0, 50_000), max_size=300).map(sorted),
    st.lists(st.tuples(st.floats(0, 50_000), st.floats(0, 270)), max_size=50),
)
def test_no_request_is_over_that_ends_within_five_minutes(times, requests):
    """Whatever the pages say: those of another engine, a copy, none of it is true."""
    said = [(at, 0, 0.0) for at in times]
    said += [(sent + seconds, 1, sent) for sent, seconds in requests]
    reports = IdleReports()
    reports.report(idle(-1, running=1))
    for at, kind, sent in sorted(said):
        if kind:
            assert not reports.over_before > sent
            reports.record_activity(sent)
        else:
            reports.report(idle(at))


@given(st.integers(1, 12))
def test_a_page_that_was_wrong_is_believed_later(times):
    reports = IdleReports()
    reports.report(idle(0, running=1))
    now, needed = 0.0, []
    for _ in range(times):
        start = now
        while reports.over_before == -inf:
            now += 1.0
            reports.report(idle(now))
        needed.append(now - start)
        reports.record_activity(start)
    assert needed == sorted(needed)
    assert needed[0] == pytest.approx(271, abs=2)
    assert needed[-1] <= 9 * 480 + 1
