"""When reports without requests show that a request is over, and when they do not."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epp.model.endpoint import Load
from epp.model.pods.idle_reports import FrozenReports, IdleReports


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


COUNTING = Load(counted=True, cache_queries=5, at=0)
LOADED = replace(COUNTING, running=9, waiting=3, kv_usage=0.512)
HUNDREDTHS = replace(LOADED, kv_usage=0.51)
FROZEN = {
    "an idle engine": (COUNTING, 600, 0, 0, False),
    "it has served what was sent since": (COUNTING, 60, 3, 0, True),
    "an exporter renews its page each minute": (COUNTING, 59, 3, 0, False),
    "it has served little": (COUNTING, 600, 2, 0, False),
    "it does not count prompts": (Load(counted=True, at=0), 600, 90, 0, False),
    "it counts none, as it does not cache": (replace(COUNTING, caching=False), 600, 90, 0, False),
    "it has counted none yet": (replace(COUNTING, cache_queries=0), 600, 90, 0, False),
    "it has counted more digits": (replace(COUNTING, cache_queries=1.23457e6), 600, 90, 0, False),
    "it has not": (replace(COUNTING, cache_queries=1234571), 600, 90, 0, True),
    "it does not go on with requests of others": (LOADED, 60, 0, 0, True),
    "not yet": (LOADED, 59, 0, 0, False),
    "it has more memory than shows": (HUNDREDTHS, 599, 0, 0, False),
    "but not for so long": (HUNDREDTHS, 600, 0, 0, True),
    "its blocks are large": (replace(LOADED, block_size=4096), 599, 0, 0, False),
    "its memory is not known": (replace(LOADED, kv_usage=0), 599, 0, 0, False),
    "all are own requests": (LOADED, 600, 0, 12, False),
    "few are others'": (LOADED, 600, 0, 9, False),
    "it sleeps": (replace(LOADED, awake=False), 600, 0, 0, False),
}


@pytest.mark.parametrize(
    ("page", "seconds", "served", "own", "frozen"), FROZEN.values(), ids=FROZEN
)
def test_pages_are_frozen_if_the_engine_works(page, seconds, served, own, frozen):
    reports = FrozenReports()
    reports.record_served(-1.0)  # what was sent before may be counted already
    assert not reports.report(page, own)
    reports.record_served(-1.0)
    for _ in range(served):
        reports.record_served(seconds)
    assert not reports.report(replace(page, at=seconds / 2), own)
    assert reports.report(replace(page, at=seconds), own) is frozen
    assert reports.proven is (frozen and served > 0)
    assert reports.changed_at == 0 or not frozen


def test_a_page_may_be_older_than_a_burst_of_requests():
    """It was sent before them, and is read after them."""
    reports = FrozenReports()
    reports.report(COUNTING, 0)
    for _ in range(50):
        reports.record_served(60.0)
    assert not reports.report(replace(COUNTING, at=60), 0)
    assert not reports.report(replace(COUNTING, cache_queries=55.0, at=61), 0)


@pytest.mark.parametrize(
    "change", [{"cache_queries": 6.0}, {"running": 8.0}, {"waiting": 4.0}, {"kv_usage": 0.513}]
)
def test_any_change_shows_that_pages_are_not_frozen(change):
    reports = FrozenReports()
    reports.report(LOADED, 0)
    assert reports.report(replace(LOADED, at=60), 0)
    changed = replace(LOADED, at=61, **change)
    assert not reports.report(changed, 0)
    assert reports.changed_at == 61
    assert not reports.report(replace(changed, at=62), 0)


@given(
    st.lists(st.tuples(st.floats(0.5, 30), st.integers(0, 5)), min_size=1, max_size=60),
    st.floats(0, 1),
)
def test_an_engine_that_counts_its_prompts_is_never_frozen(polls, late):
    """Its page counts each request by the end of its response, and is read a little later."""
    reports, tokens, now = FrozenReports(), 0.0, 0.0
    for seconds, requests in polls:
        for _ in range(requests):
            tokens += 10.0
            reports.record_served(now + seconds * late)
        now += seconds
        assert not reports.report(Load(counted=True, cache_queries=tokens, at=now), 0)


@given(st.integers(10**6, 10**9), st.lists(st.integers(1, 200), min_size=20, max_size=60))
def test_an_engine_whose_page_has_six_digits_is_never_frozen(before, prompts):
    """llama.cpp prints its counters so, and counts prompts without what it has cached of them."""
    reports, now = FrozenReports(), 0.0
    for tokens in prompts:
        now += 65.0
        reports.record_served(now - 1.0)
        before += tokens
        page = Load(counted=True, cache_queries=float(f"{before:g}"), at=now)
        assert not reports.report(page, 0)


@given(st.integers(2**18, 2**23), st.integers(1, 60), st.integers(4, 16))
def test_an_engine_that_rounds_its_used_share_is_not_frozen_in_some_minutes(
    capacity, tokens_per_second, running
):
    """SGLang: long responses of others, at their own pace, on a page with hundredths of a pool."""
    reports = FrozenReports()
    for at in range(0, 600, 10):
        used = (100_000 + at * tokens_per_second * running) / capacity
        page = Load(
            counted=True,
            running=running,
            kv_usage=min(1.0, round(used, 2)),
            cache_queries=9.0,
            at=at,
        )
        assert not reports.report(page, 0)
