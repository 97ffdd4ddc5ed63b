"""What a user's plug-in raises for a request that waits keeps no other one from its decision."""

from math import inf

import pytest

from epp.policy.flow.flow_control import FlowControl
from epp.policy.flow.settings import BandLimits, FlowSettings, GateSettings
from epp.policy.pickers import LeastTtftPicker
from epp.policy.profile import Profile, Scheduling
from epp.policy.scheduler import Scheduler
from tests.policy.flow.flow_rig import FlowRig


class Failing:
    """A filter of a user's that raises for some requests."""

    def __init__(self):
        self.of = set()

    def filter(self, request, candidates):
        if request.id in self.of:
            raise ZeroDivisionError
        return candidates


class FailingDetector:
    """A saturation detector of a user's: every endpoint is full, or it raises."""

    def __init__(self):
        self.raises = False

    def saturation(self, candidates):
        if self.raises:
            raise ZeroDivisionError
        return 2.0


def with_plugins(*filters, **settings):
    rig = FlowRig(pods=1)
    profile = Profile("default", filters, (), LeastTtftPicker())
    scheduling = Scheduling(profiles={"default": profile})
    rig.flow = FlowControl(
        Scheduler(rig.fleet, scheduling, lambda _: 0),
        rig.fleet,
        FlowSettings(**settings),
        rig.flow.on_outcome,
    )
    return rig


def look_in_vain(rig, detector, *, second_at, at):
    """Have "a" wait and later "b", and look for room at a time at which the detector raises."""
    rig.come("a", 100)
    rig.wait(second_at)
    rig.come("b", 100)
    rig.wait(at - second_at)
    detector.raises = True
    with pytest.raises(ZeroDivisionError):
        rig.release()


def test_what_a_plugin_raises_for_one_that_waits_is_its_outcome_and_others_go():
    failing = Failing()
    rig = with_plugins(failing)
    rig.come("first", 20_000)
    for name in ("a", "b", "c"):
        rig.come(name, 100)
    failing.of.add("a")
    rig.wait(0.03)
    rig.begin("first")
    assert rig.release() == ["b", "c"]
    assert isinstance(rig.refused["a"], ZeroDivisionError)
    assert (rig.flow.line.requests, rig.flow.due, rig.held) == (0, inf, {})


def test_one_whose_time_is_up_is_answered_with_what_a_plugin_raises():
    failing = Failing()
    rig = with_plugins(failing, most_seconds=5.0)
    rig.come("first", 20_000)
    rig.come("a", 100)
    failing.of.add("a")
    rig.wait(6.0)
    rig.release()
    assert isinstance(rig.refused["a"], ZeroDivisionError)


def test_what_was_decided_before_a_look_for_room_raised_is_handed_over():
    detector = FailingDetector()
    rig = with_plugins(most_seconds=5.0, gate=GateSettings(detector=detector))
    look_in_vain(rig, detector, second_at=3.0, at=5.5)
    assert (list(rig.sent), list(rig.held)) == (["a"], ["b"])


def test_one_that_was_refused_before_a_look_for_room_raised_is_counted():
    detector = FailingDetector()
    rig = with_plugins(band=BandLimits(ttl=2.0), gate=GateSettings(detector=detector))
    look_in_vain(rig, detector, second_at=1.0, at=2.5)
    assert rig.outcomes == [("a", "EvictedTTL", 2.5)]
    assert (rig.refused["a"].waited, list(rig.held)) == (2.5, ["b"])
