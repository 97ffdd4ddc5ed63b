"""The extension points around profiles: screeners, admitters, handlers, observers, events."""

import pytest

from epp.errors import NoEndpoints, Overloaded
from epp.model.request import RequestId
from epp.model.request_events import Admitted, FirstToken
from epp.policy.pickers import MaxScorePicker
from epp.policy.profile import EventSubscription, Profile, Scheduling
from epp.policy.scheduler import Scheduler
from epp.values import replaced
from tests.model.rig import Rig
from tests.policy.routing import routed
from tests.strategies import request, text


class Keep:
    """A filter or a screener: it keeps endpoints by name."""

    def __init__(self, *names):
        self.names = names

    def filter(self, request, candidates):
        return [each for each in candidates if each.endpoint.name in self.names]

    def screen(self, request, candidates):
        return self.filter(request, candidates)


class TwoStages:
    """Runs `first`, then `second` with another request, and answers as the second."""

    def schedule(self, request, run):
        first = run("first", request)
        return replaced(run("second", replaced(request, fairness_id=first.endpoint.name)))


class Refusing:
    def __init__(self):
        self.seen = []

    def admit(self, request, candidates):
        self.seen = [each.endpoint.name for each in candidates]
        if request.priority < 0:
            raise Overloaded("not today")


class Noting:
    def __init__(self):
        self.committed_to = []

    def committed(self, request, decision, now):
        self.committed_to.append((request.id, decision.endpoint.name, now))


def profile(name, *filters):
    return Profile(name, filters, (), MaxScorePicker())


def scheduler(rig, *profiles, **more):
    scheduling = Scheduling(profiles={each.name: each for each in profiles}, **more)
    return Scheduler(rig.fleet, scheduling, lambda _: 0)


def test_screeners_go_before_every_profile():
    rig = Rig(4)
    screened = Keep("pod-1", "pod-2"), Keep("pod-2", "pod-3")
    decision = routed(scheduler(rig, profile("p"), screeners=screened), request(), rig.now)
    assert decision.endpoint.name == "pod-2"


def test_a_screener_that_leaves_none_answers_503():
    rig = Rig(2)
    with pytest.raises(NoEndpoints, match="screener Keep left no endpoint") as raised:
        routed(scheduler(rig, profile("p"), screeners=(Keep(),)), request(), rig.now)
    assert (raised.value.status, raised.value.reason) == (503, "screened-out")


def test_errors_call_plug_ins_as_the_file_does():
    rig, filtering, screener = Rig(2), Keep(), Keep()
    names = {id(filtering): ("keep", "spot"), id(screener): ("keep", "zone")}
    desk = scheduler(rig, profile("p", filtering), plugin_names=names)
    with pytest.raises(NoEndpoints, match="filter spot left no endpoint"):
        routed(desk, request(), rig.now)
    desk = scheduler(rig, profile("p"), screeners=(screener,), plugin_names=names)
    with pytest.raises(NoEndpoints, match="screener zone left no endpoint"):
        routed(desk, request(), rig.now)


def test_an_admitter_sees_what_the_screeners_left_and_may_refuse():
    rig, admitter = Rig(3), Refusing()
    desk = scheduler(rig, profile("p"), screeners=(Keep("pod-1"),), admitters=(admitter,))
    assert routed(desk, request(), rig.now).endpoint.name == "pod-1"
    assert admitter.seen == ["pod-1"]
    with pytest.raises(Overloaded, match="not today"):
        routed(desk, request("r2", priority=-1), rig.now)
    assert RequestId("r2") not in rig.fleet.in_flight


def test_a_handler_runs_profiles_by_name():
    rig = Rig(3)
    stages = profile("first", Keep("pod-0")), profile("second", Keep("pod-2"))
    decision = routed(scheduler(rig, *stages, handler=TwoStages()), request(), rig.now)
    assert (decision.profile, decision.endpoint.name) == ("second", "pod-2")


def test_observers_are_notified_of_what_is_committed_only():
    rig, observer = Rig(2), Noting()
    desk = scheduler(rig, profile("p", Keep("pod-1")), commit_observers=(observer,))
    quote = desk.quote(request(), rig.now)
    desk.decide(request(), quote, rig.now)
    assert observer.committed_to == []
    routed(desk, request("r2"), 7.0)
    assert observer.committed_to == [("r2", "pod-1", 7.0)]


def test_subscriptions_are_to_the_fleets_events():
    rig, heard = Rig(1), []

    def hear(event, now, guessed):
        heard.append((type(event), now, guessed))

    subscription = EventSubscription("q", (Admitted, FirstToken), hear)
    desk = scheduler(rig, profile("p"), subscriptions=(subscription,))
    routed(desk, request("r1", text(100)), rig.now)
    rig.fleet.apply(FirstToken(RequestId("r1")), rig.now)
    assert heard == [(Admitted, rig.now, False), (FirstToken, rig.now, False)]
