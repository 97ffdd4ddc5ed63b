"""What only observes requests hurts none of them, and no other observer."""

from itertools import product

import pytest
from structlog.testing import capture_logs

from epp.adapters.telemetry.metrics import MetricSources, Telemetry
from epp.app.director import PickerDirector
from epp.app.observers import Faults, Observer, Observers
from epp.errors import RequestError
from epp.model.decision import Decision
from epp.model.request import RequestId, Usage
from epp.model.request_events import Aborted, Admitted, Finished
from epp.policy.flow.flow_control import FlowControl
from epp.policy.flow.settings import FlowSettings
from epp.policy.pickers import MaxScorePicker
from epp.policy.profile import EventSubscription, Profile, Scheduling
from epp.policy.scheduler import Scheduler
from epp.protocol.extproc.record import Outcome
from tests.model.rig import Rig
from tests.model.test_fleet_ends import assert_empty
from tests.records import record_of
from tests.strategies import request, text

HOOKS = ("quoted", "committing", "ended")


def observer(name, heard, *, fails=False):
    """Return an observer that notes each call, and then may fail."""

    def hook(kind):
        def called(*_):
            heard.append((name, kind))
            if fails:
                raise KeyError(kind)

        return called

    return Observer(name=name, **{kind: hook(kind) for kind in HOOKS})


class Committed:
    """A plug-in that is notified of decisions and of events, and fails on each."""

    def committed(self, request, decision, now):
        raise KeyError("committed")

    def hear(self, *_):
        raise KeyError("heard")


class Desk:
    def __init__(self, observers=(), plugin=None, faults=None):
        self.rig, self.faults = Rig(1), Faults() if faults is None else faults
        found = Observers(observers)
        plugins = () if plugin is None else (plugin,)
        scheduling = Scheduling(
            profiles={"p": Profile("p", (), (), MaxScorePicker())},
            commit_observers=plugins,
            subscriptions=tuple(
                EventSubscription("mine", (Admitted, Finished), each.hear) for each in plugins
            ),
            plugin_names={id(each): ("a-type", "mine") for each in plugins},
        )
        self.scheduler = Scheduler(
            self.rig.fleet,
            scheduling,
            lambda _: 0,
            quoted=found.quoted,
            committing=found.committing,
            on_fault=self.faults,
        )
        fleet = self.rig.fleet
        self.telemetry = Telemetry(
            MetricSources("p", fleet.loads, fleet.cache_stats, lambda: fleet.indexed_blocks)
        )
        self.director = PickerDirector(
            FlowControl(self.scheduler, fleet, FlowSettings()),
            fleet.apply,
            self.telemetry,
            lambda: self.rig.now,
            None,
            poll_now=lambda _: None,
            ended=found.ended,
            on_fault=self.faults,
        )

    def serve(self, identity="r"):
        wanted = request(identity, text(100))
        decision = self.director.route(wanted, self.rig.now)
        assert isinstance(decision, Decision)
        self.rig.apply(Finished(RequestId(identity), Usage(100, 5, 0)))
        record = record_of(id=wanted.id, received_at=0.0, request=wanted, decision=decision)
        record.outcome, record.finished_at = Outcome.COMPLETED, self.rig.now
        self.director.exchange_ended(record)
        return decision


@pytest.mark.parametrize("fails", list(product((False, True), repeat=3)))
def test_each_observer_is_called_whatever_the_others_do(fails):
    heard: list[object] = []
    desk = Desk([observer(str(n), heard, fails=each) for n, each in enumerate(fails)])
    with capture_logs() as logs:
        for number in range(3):
            assert desk.serve(f"r{number}").endpoint.name == "pod-0"
    assert heard == [(str(n), kind) for _ in range(3) for kind in HOOKS for n in range(3)]
    assert desk.faults.counts == {f"observer/{n}": 9 for n in range(3) if fails[n]}
    said = [line["source"] for line in logs if line["event"] == "fault"]
    assert said == [f"observer/{n}" for n in range(3) if fails[n]]
    assert_empty(desk.rig)


def test_a_plug_in_that_fails_on_what_it_is_notified_of_is_named():
    desk = Desk(plugin=Committed())
    with capture_logs() as logs:
        for number in range(2):
            assert desk.serve(f"r{number}").endpoint.name == "pod-0"
    assert desk.faults.counts == {"plugin/mine": 6}
    (line,) = [each for each in logs if each["event"] == "fault"]
    assert (line["source"], line["error"]) == ("plugin/mine", "KeyError: 'heard'")
    assert 'warmpick_faults_total{source="plugin/mine"} 6.0\n' in "".join(
        each.lines() for each in desk.faults.collect()
    )
    assert_empty(desk.rig)


def test_what_raises_out_of_a_commit_is_taken_back():
    def give_up(_source, error):
        raise error

    heard: list[object] = []
    desk = Desk(plugin=Committed(), faults=give_up)
    desk.rig.fleet.subscribe((Aborted,), lambda event, *_: heard.append(event))
    for number in range(3):
        with pytest.raises(KeyError):
            desk.director.route(request(f"r{number}", text(100)), desk.rig.now)
    assert heard == [Aborted(RequestId(f"r{number}"), refused=True) for number in range(3)]
    assert_empty(desk.rig)


class Codeless(RequestError):
    """An error that cannot be counted."""

    def __getattribute__(self, name):
        if name == "code":
            raise KeyError(name)
        return super().__getattribute__(name)


def test_telemetry_observers_and_log_of_an_end_come_in_any_case():
    heard: list[object] = []
    desk = Desk([observer("o", heard)])
    nowhere = record_of(
        id=RequestId("r"),
        received_at=0.0,
        request=request("r"),
        decision=Decision(endpoints=()),
        outcome=Outcome.COMPLETED,
        error=Codeless("nothing"),
        finished_at=1.0,
        status=503,
    )
    with capture_logs():
        desk.director.exchange_ended(nowhere)
    assert heard == [("o", "ended")]
    assert set(desk.faults.counts) == {"telemetry", "access-log", "director"}


def test_without_observers_nobody_is_called():
    found = Observers((Observer(name="page", collect=lambda: iter(())),))
    assert (found.quoted, found.committing, found.ended) == ((), (), ())
    assert (found.start(), list(found.stops()), list(found.collect())) == ([], [], [])


async def test_what_runs_beside_is_started_once_and_stopped():
    done = []

    async def run():
        done.append("run")

    async def stop():
        done.append("stop")

    found = Observers([Observer(name="a", start=lambda: done.append("start"), run=run, stop=stop)])
    for name, job in found.start():
        assert name == "a"
        await job()
        await job()
    for _, step in found.stops():
        await step
    assert done == ["start", "run", "run", "stop"]
