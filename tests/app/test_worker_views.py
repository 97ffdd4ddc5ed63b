"""Decisions, endpoints and the console's page of several workers as one."""

from typing import Any

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from epp.app.console.views import (
    BandView,
    ConsolePage,
    DecisionColumns,
    ReplicasView,
    ShadowView,
    Totals,
    WaitingView,
)
from epp.app.observing.fleet_view import EndpointsPage, EndpointView
from epp.app.observing.views import DecisionsPage, DecisionView
from epp.app.workers.views import (
    Made,
    decisions_on,
    in_order,
    merged_console,
    merged_decisions,
    merged_endpoints,
)

LATER = 1_000


def page(*times, last=None):
    """A page of decisions of these times; they are the last ones."""
    last = len(times) if last is None else last
    first = last - len(times) + 1
    return DecisionsPage(
        last=last,
        decisions=tuple(
            DecisionView(number=first + at, request=f"r{time}", at=f"{time:06}")
            for at, time in enumerate(times)
        ),
    )


def shown(pages, *, since=None, limit=100, until=LATER, before=0):
    made = Made([each.last for each in pages], before)
    found = merged_decisions(pages, made, f"{until:06}", since, limit)
    return found.last, [(each.number, int(each.at)) for each in found.decisions]


def test_decisions_are_numbered_in_the_order_of_time():
    last, rows = shown([page(1, 4, 5), page(2, 3)])
    assert last == 5
    assert rows == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]


def test_only_what_came_after_a_number_is_shown():
    pages = [page(1, 4, 5), page(2, 3)]
    assert shown(pages, since=3) == (5, [(4, 4), (5, 5)])
    assert shown(pages, since=5) == (5, [])


def test_who_asks_again_from_the_last_number_misses_none():
    """As of one picker: the first ones after a number, and the last ones without a number."""
    pages = [page(1, 4, 5), page(2, 3)]
    assert shown(pages, since=0, limit=2) == (2, [(1, 1), (2, 2)])
    assert shown(pages, since=2, limit=2) == (4, [(3, 3), (4, 4)])
    assert shown(pages, since=4, limit=2) == (5, [(5, 5)])
    assert shown(pages, limit=2) == (5, [(4, 4), (5, 5)])


def test_what_is_made_while_they_are_asked_waits_for_the_next_time():
    assert shown([page(1, 4, 5), page(2, 3)], until=4) == (3, [(1, 1), (2, 2), (3, 3)])
    assert shown([page(9), page(1)], until=4) == (1, [(1, 1)])


def test_what_is_older_than_what_one_shows_has_no_number():
    # The first shows the last two of seven: what it did before 6 is not known.
    assert shown([page(6, 8, last=7), page(1, 7)]) == (9, [(7, 6), (8, 7), (9, 8)])


def test_numbers_go_on_where_a_worker_was_started_again():
    assert shown([page(8), page(1, 7)], before=20) == (23, [(21, 1), (22, 7), (23, 8)])


times = st.lists(st.lists(st.integers(0, 99), max_size=12), min_size=1, max_size=4)


@given(times, st.integers(1, 12), st.integers(0, 100))
def test_a_number_is_the_place_among_all_that_were_made(each, most, until):
    """An oracle that knows all decisions, of which each worker shows its last few."""
    every = [sorted(several) for several in each]
    assume(all(len(several) <= most or several[-most] < until for several in every))
    rows, last = in_order(
        [several[-most:] for several in every], Made([len(several) for several in every], 0), until
    )
    known = sorted(
        (time, worker) for worker, several in enumerate(every) for time in several if time < until
    )
    assert last == len(known)
    numbers = [number for number, _, _ in rows]
    assert numbers == list(range(last - len(numbers) + 1, last + 1))
    for number, worker, place in rows:
        assert known[number - 1] == (every[worker][-most:][place], worker)


def test_a_request_is_found_whoever_decided_on_it():
    found = decisions_on([page(4), page(), page(2)], 10)
    assert [each.request for each in found.decisions] == ["r2", "r4"]


def endpoint(name, **more):
    values: dict[str, Any] = dict.fromkeys(EndpointView.__struct_fields__, 1)
    return EndpointView(**values | {"endpoint": name, "target": name, "state": "ready"} | more)


def test_of_endpoints_what_one_saw_is_added_up_and_what_all_know_is_not():
    pages = [
        EndpointsPage(pool="p", at=1, decisions=2, endpoints=(endpoint("a", responses=5),)),
        EndpointsPage(
            pool="p", at=2, decisions=3, endpoints=(endpoint("b"), endpoint("a", waiting=9))
        ),
    ]
    (found,) = merged_endpoints(pages, 5).endpoints
    assert (found.responses, found.prompt_tokens, found.waiting, found.requests) == (6, 2, 1, 1)
    assert merged_endpoints(pages, 5).decisions == 5


def columns(*rows):
    """Decisions of these numbers and times."""
    empty = dict.fromkeys(DecisionColumns.__struct_fields__, (None,) * len(rows))
    given_columns = {"number": tuple(n for n, _ in rows), "at_ms": tuple(at for _, at in rows)}
    return DecisionColumns(**empty | given_columns)


def waiting(requests, *bands):
    return WaitingView(
        holds=True,
        gated=False,
        requests=requests,
        bytes=10 * requests,
        prefill_seconds=0.5,
        bands=tuple(BandView(priority=p, requests=n, bytes=n) for p, n in bands),
        no_room={"kv": requests},
        refused={},
        waited=requests,
        waited_seconds=0.25,
        memory_share=0.5,
    )


def fleet(*names):
    """Endpoints as columns."""
    seen = (
        "responses",
        "prompt_tokens",
        "cached_prompt_tokens",
        "predicted_cached_tokens",
        "error_tokens",
    )
    columns = {"endpoint": names, "waiting": [1] * len(names)}
    return msgspec.Raw(msgspec.json.encode(columns | {each: [10] * len(names) for each in seen}))


def replicas(**more):
    counts = dict.fromkeys(ReplicasView.__struct_fields__, 1)
    values: dict[str, Any] = counts | {"warm": True, "dropped": {}, "peers": ()} | more
    return ReplicasView(**values)


def console(rows, **more):
    totals = dict.fromkeys(Totals.__struct_fields__, 3)
    values = {
        "pool": "p",
        "started": "one",
        "at_ms": 50,
        "decisions": len(rows),
        "endpoints": fleet("a"),
        "totals": Totals(**totals),
        "recent": columns(*rows),
        "ended": columns(),
        "waiting": waiting(2, (0, 1), (5, 1)),
        "replicas": None,
        "shadow": None,
    }
    return ConsolePage(**values | more)


def test_the_console_sees_one_picker():
    pages = [
        console(
            [(1, 10), (2, 30)],
            endpoints=fleet("a", "c"),
            replicas=replicas(),
            shadow=ShadowView(
                policy="linear", **dict.fromkeys(ShadowView.__struct_fields__[1:], 2)
            ),
        ),
        console(
            [(1, 20)],
            started="two",
            endpoints=fleet("b", "a"),
            waiting=waiting(3, (0, 2), (-1, 1)),
            replicas=replicas(warm=False, dropped={"own": 2}, known=7),
            shadow=ShadowView(
                policy="linear", **dict.fromkeys(ShadowView.__struct_fields__[1:], 3)
            ),
        ),
    ]
    found = merged_console(pages, Made([2, 1], 0), LATER, 1, 200)
    assert found.decisions == 3
    assert (found.recent.number, found.recent.at_ms) == ((2, 3), (20, 30))
    assert found.totals.cached == 6
    seen = msgspec.json.decode(found.endpoints)
    assert (seen["endpoint"], seen["responses"], seen["waiting"]) == (["a", "c"], [20, 10], [1, 1])
    counts = {"applied": 2, "unsent": 2, "compared_same": 2, "compared_different": 2}
    assert found.replicas == replicas(warm=False, dropped={"own": 2}, **counts)
    assert found.shadow is not None
    assert (found.shadow.policy, found.shadow.agreed, found.shadow.failed) == ("linear", 5, 5)
    assert found.waiting is not None
    assert found.waiting.requests == 5
    assert found.waiting.no_room == {"kv": 5}
    assert [(each.priority, each.requests) for each in found.waiting.bands] == [
        (5, 1),
        (0, 3),
        (-1, 1),
    ]


def test_what_has_ended_is_told_by_all_and_asked_for_after_the_first_that_was_asked():
    pages = [
        console([(1, 10)], at_ms=52, ended=columns((1, 10))),
        console([(1, 20)], at_ms=50, ended=columns((7, 5), (8, 6))),
    ]
    found = merged_console(pages, Made([1, 1], 0), LATER, 2, 200)
    assert (found.at_ms, found.recent.number) == (50, ())
    assert found.ended.at_ms == (10, 5, 6)


def test_the_console_begins_anew_where_any_worker_does():
    pages = [console([]), console([])]
    restarted = [pages[0], replace(pages[1], started="another")]
    made = Made([0, 0], 0)
    first, second = (merged_console(each, made, LATER, 0, 9) for each in (pages, restarted))
    assert first.started != second.started
