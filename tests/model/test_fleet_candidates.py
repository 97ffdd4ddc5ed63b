"""The fleet: which endpoints may be picked."""

import pytest

from epp.model.endpoint import EndpointId
from epp.model.events import ScrapeFailed, ScrapeFailure
from tests.model.rig import Rig


@pytest.mark.parametrize(
    ("subset", "names"),
    [
        (None, ["pod-0", "pod-1", "pod-2"]),
        (("10.0.0.2:8000",), ["pod-1"]),
        (("10.0.0.3", "10.0.0.1:8000"), ["pod-0", "pod-2"]),
        (("10.0.0.2:9",), []),
        (("10.0.0.20",), []),
        (("[fd00::1]:8000",), []),
        ((), []),
    ],
)
def test_a_subset_names_addresses_or_targets(subset, names):
    assert list(Rig(3).ask(subset=subset)) == names


@pytest.mark.parametrize(
    "subset",
    [("[fd00::1]:8000",), ("fd00::1",), ("[FD00:0:0::1]:8000",), ("fd00:0:0:0:0:0:0:1", "")],
)
def test_a_subset_may_be_ipv6(subset):
    rig = Rig()
    rig.add("six", "fd00::1")
    assert list(rig.ask(subset=subset)) == ["six"]


def test_an_endpoint_that_refuses_is_left_out_at_once():
    rig = Rig()
    rig.apply(ScrapeFailed(EndpointId("default/pod-0"), ScrapeFailure.REFUSED))
    assert list(rig.ask()) == ["pod-1"]
    assert [answers for _, _, answers in rig.fleet.loads()] == [False, True]
    rig.apply(ScrapeFailed(EndpointId("default/pod-0"), ScrapeFailure.BROKEN))
    assert list(rig.ask()) == ["pod-1"]
    rig.report("pod-0")
    assert list(rig.ask()) == ["pod-0", "pod-1"]


def test_an_endpoint_is_unreachable_after_three_connections_that_broke():
    rig = Rig()
    for _ in range(2):
        rig.apply(ScrapeFailed(EndpointId("default/pod-0"), ScrapeFailure.BROKEN))
    rig.report("pod-0")
    for _ in range(2):
        rig.apply(ScrapeFailed(EndpointId("default/pod-0"), ScrapeFailure.BROKEN))
        assert list(rig.ask()) == ["pod-0", "pod-1"]
    rig.apply(ScrapeFailed(EndpointId("default/pod-0"), ScrapeFailure.BROKEN))
    assert list(rig.ask()) == ["pod-1"]


@pytest.mark.parametrize("reason", [ScrapeFailure.LATE, ScrapeFailure.NO_PAGE])
def test_a_page_that_is_late_or_missing_says_nothing_of_its_endpoint(reason):
    rig = Rig(10)
    for name in list(rig.ask())[1:]:
        rig.report(name, waiting=3, running=4)
        for _ in range(20):
            rig.apply(ScrapeFailed(EndpointId(f"default/{name}"), reason))
            rig.now += 1
    asked = rig.ask()
    assert len(asked) == 10
    assert {each.load.waiting for each in list(asked.values())[1:]} == {3}


def test_what_answers_is_there_whatever_it_answers():
    rig = Rig()
    for reason in (ScrapeFailure.REFUSED, *[ScrapeFailure.BROKEN] * 3):
        rig.apply(ScrapeFailed(EndpointId("default/pod-0"), reason))
    rig.apply(ScrapeFailed(EndpointId("default/pod-0"), ScrapeFailure.LATE))
    assert list(rig.ask()) == ["pod-1"]
    rig.apply(ScrapeFailed(EndpointId("default/pod-0"), ScrapeFailure.NO_PAGE))
    assert list(rig.ask()) == ["pod-0", "pod-1"]


def test_where_no_endpoint_answers_all_are_eligible():
    rig = Rig()
    for name in ("pod-0", "pod-1"):
        rig.apply(ScrapeFailed(EndpointId(f"default/{name}"), ScrapeFailure.REFUSED))
    assert list(rig.ask()) == ["pod-0", "pod-1"]


def test_an_endpoint_that_sleeps_is_left_out_until_it_wakes():
    rig = Rig()
    rig.report("pod-0", awake=False)
    assert list(rig.ask()) == ["pod-1"]
    assert list(rig.ask(subset=("10.0.0.1",))) == ["pod-0"]
    rig.report("pod-1", awake=False)
    assert list(rig.ask()) == ["pod-0", "pod-1"]
    rig.report("pod-0")
    assert list(rig.ask()) == ["pod-0"]


def test_in_a_subset_only_its_own_silence_counts():
    rig = Rig()
    rig.apply(ScrapeFailed(EndpointId("default/pod-0"), ScrapeFailure.REFUSED))
    assert list(rig.ask(subset=("10.0.0.1",))) == ["pod-0"]
