"""The filter by age: who has joined, what is offered meanwhile, and what is wrong with settings."""

import pytest

from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved, EndpointUpserted, Listed
from epp.policy.filters.slow_start import SlowStartFilter
from tests.policy.started import Context, kept
from tests.strategies import candidate, endpoint, request

OLD, NEW = endpoint("old"), endpoint("new", "10.0.0.2")
ASKED = request("r1", "x")


def told(events, *drawn, **parameters):
    """Start a filter that draws these shares, and tell it of events at their times."""
    context = Context(drawn)
    found = SlowStartFilter(**parameters).start(context)
    (learn,) = context.listeners
    for now, event in events:
        learn(event, now, False)
    return found


def offered(found, now, *names):
    asked = [candidate(name, now=now) for name in names or ("old", "new")]
    return kept(found.filter(ASKED, asked))


JOINED = [(0, EndpointUpserted(OLD)), (0, Listed()), (100, EndpointUpserted(NEW))]


@pytest.mark.parametrize(
    ("age", "drawn", "all_kept"),
    [
        (0, 0.09, True),
        (0, 0.11, False),
        (3, 0.09, True),  # a tenth at least
        (30, 0.49, True),
        (30, 0.51, False),
        (59.9, 0.99, True),
        (60, 1.0, True),
    ],
)
def test_what_has_joined_is_offered_more_and_more(age, drawn, all_kept):
    found = told(JOINED, drawn)
    assert offered(found, 100 + age) == (["old", "new"] if all_kept else ["old"])


@pytest.mark.parametrize(
    "events",
    [
        [(0, EndpointUpserted(OLD)), (0, EndpointUpserted(NEW)), (1, Listed())],
        [(0, EndpointUpserted(NEW)), (1, Listed()), (100, EndpointUpserted(NEW))],
        [*JOINED, (100, EndpointRemoved(EndpointId("default/new")))],
        [],
    ],
    ids=["all were there", "the same engine again", "gone", "nothing is known"],
)
def test_what_has_not_joined_is_offered_all(events):
    assert offered(told(events, 0.99, 0.99), 100) == ["old", "new"]


@pytest.mark.parametrize(
    "again",
    [
        [EndpointRemoved(EndpointId("default/old")), EndpointUpserted(OLD)],
        [EndpointUpserted(endpoint("old", "10.0.0.9"))],
    ],
    ids=["came back", "another address"],
)
def test_another_engine_has_joined(again):
    before = [(0, EndpointUpserted(OLD)), (0, EndpointUpserted(NEW)), (0, Listed())]
    found = told([*before, *((100, event) for event in again)], 0.99)
    assert offered(found, 110) == ["new"]


def test_all_are_offered_where_all_are_new():
    found = told([(0, Listed()), (0, EndpointUpserted(OLD)), (0, EndpointUpserted(NEW))], 0.9, 0.9)
    assert offered(found, 1) == ["old", "new"]
    assert offered(found, 1, "new") == ["new"]
    assert found.filter(ASKED, []) == []


def test_window_and_least_weight_are_parameters():
    found = told(JOINED, 0.0, 0.3, 0.3, window_seconds=10, min_weight_percent=0)
    assert [offered(found, 100 + age) for age in (0, 2, 4)] == [["old"], ["old"], ["old", "new"]]


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({"window_seconds": 0}, "`windowSeconds` is 0, not above 0"),
        ({"min_weight_percent": -1}, "`minWeightPercent` is -1, below 0"),
        ({"min_weight_percent": 101}, "`minWeightPercent` is 101, above 100"),
    ],
)
def test_bad_parameters(parameters, error):
    with pytest.raises(ValueError, match=error):
        SlowStartFilter(**parameters)
