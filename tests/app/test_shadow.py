"""The shadow: it is compared with the live policy, and changes nothing of it."""

import random
from importlib.metadata import EntryPoint

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from structlog.testing import capture_logs

from epp.app.observers import Observers
from epp.app.observing import shadow
from epp.app.observing.shadow import Shadow
from epp.config.file import POLICIES, load
from epp.model.request import RequestId, Usage
from epp.model.request_events import Admitted, Finished, FirstToken
from epp.policy.scheduler import Scheduler
from tests.model.invariants import check_invariants
from tests.model.rig import Rig
from tests.policy.routing import routed
from tests.strategies import request, text
from tests.tasks import running, until

SESSIONS = """
plugins:
- {type: session-affinity-scorer}
- {type: max-score-picker}
"""


class Pair:
    """A live policy over a rig, with or without a shadow."""

    def __init__(self, live="least-ttft", shadow="random", pods=3, *, shadowed=True):
        self.rig = Rig(pods)
        found = load(POLICIES.get(shadow, shadow))
        self.shadow = Shadow(shadow, found, self.rig.fleet)
        observers = Observers((self.shadow.observer,) if shadowed else ())
        self.scheduler = Scheduler(
            self.rig.fleet,
            load(POLICIES[live]).scheduling,
            random.Random(1).randrange,  # noqa: S311 (a test's)
            committing=observers.committing,
        )

    def route(self, identity, *texts, **more):
        return routed(self.scheduler, request(identity, *texts, **more), self.rig.now)


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 300), st.sampled_from((0.0, 0.01, 3.0))),
    max_size=30,
)


@pytest.mark.parametrize("shadow", [*POLICIES, SESSIONS])
@given(steps=STEPS)
@settings(max_examples=20)
def test_live_decisions_are_the_same_with_a_shadow_and_without(shadow, steps):
    plain, shadowed = Pair(shadowed=False), Pair(shadow=shadow)
    for number, (seed, tokens, seconds) in enumerate(steps):
        decisions = []
        for pair in (plain, shadowed):
            pair.rig.now += seconds
            decision = pair.route(f"r{number}", text(tokens, seed))
            predicted = decision.predicted_ttft, decision.predicted_cached_tokens
            decisions.append((decision.endpoint.id, *predicted))
            if number % 3 == 0:
                usage = Usage(tokens, 5, decision.predicted_cached_tokens)
                pair.rig.apply(FirstToken(RequestId(f"r{number}")))
                pair.rig.apply(Finished(RequestId(f"r{number}"), usage))
        assert decisions[0] == decisions[1]
    assert shadowed.shadow.tally.failed == 0
    assert shadowed.shadow.tally.compared == len(steps)
    assert list(map(repr, plain.rig.fleet.cache_stats())) == list(
        map(repr, shadowed.rig.fleet.cache_stats())
    )


def test_agreement_and_predicted_gains_are_counted():
    pair = Pair("round-robin", shadow="least-ttft", pods=2)
    long = text(2000)
    first = pair.route("r1", long)
    pair.rig.apply(Finished(RequestId("r1"), Usage(2000, 5, 0)))
    second = pair.route("r2", long)  # goes on to the other, cold pod; the shadow would not
    assert second.endpoint.id != first.endpoint.id
    assert second.predicted_cached_tokens == 0
    tally = pair.shadow.tally
    assert (tally.agreed + tally.differed, tally.refused, tally.failed) == (2, 0, 0)
    assert tally.differed >= 1
    assert tally.live_cached == 0
    assert tally.shadow_cached > 1900
    assert tally.shadow_ttft < tally.live_ttft


class Faulty(msgspec.Struct, frozen=True):
    """A picker of an operator's own that fails."""

    def pick(self, candidates, totals, context):
        return [len(candidates) // 0]


def test_a_shadow_that_raises_is_counted_said_once_and_hurts_nobody():
    pair = Pair(pods=1)
    found = load(POLICIES["random"])
    profile = replace(found.profile, picker=Faulty())
    found = replace(found, scheduling=replace(found.scheduling, profiles={"default": profile}))
    shadow = Shadow("faulty", found, pair.rig.fleet)
    live = load(POLICIES["least-ttft"]).scheduling
    committing = Observers((shadow.observer,)).committing
    scheduler = Scheduler(pair.rig.fleet, live, lambda _: 0, committing=committing)
    with capture_logs() as logs:
        for number in range(3):
            decision = routed(scheduler, request(f"r{number}", "x"), pair.rig.now)
            assert decision.endpoint.name == "pod-0"
    assert (shadow.tally.failed, shadow.tally.compared) == (3, 0)
    (line,) = logs
    assert (line["event"], line["policy"]) == ("shadow.failed", "faulty")
    assert line["error"].startswith("ZeroDivisionError")


class Following(msgspec.Struct, frozen=True):
    """A plug-in of an operator's own that follows events, and fails on each."""

    def start(self, context):
        context.subscribe((Admitted, FirstToken, Finished), self.fail)
        return self

    def fail(self, *_):
        raise KeyError("mine")

    def score(self, request, candidates):
        return [1.0] * len(candidates)


def test_a_listener_of_a_shadow_that_raises_fails_the_shadow_alone(monkeypatch):
    entry = "tests.app.test_shadow:Following"
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda **_: [EntryPoint("following", entry, "g")]
    )
    pair = Pair(shadow="plugins: [{type: following}, {type: max-score-picker}]", pods=1)
    with capture_logs() as logs:
        assert pair.route("r1", text(100)).endpoint.name == "pod-0"
        pair.rig.apply(FirstToken(RequestId("r1")))
        pair.rig.apply(Finished(RequestId("r1"), Usage(100, 5, 0)))
    assert pair.rig.fleet.in_flight == {}
    check_invariants(pair.rig.fleet)
    assert (pair.shadow.tally.failed, pair.shadow.tally.compared) == (3, 1)
    assert [(line["event"], line["error"]) for line in logs] == [
        ("shadow.failed", "KeyError: 'mine'")
    ]


def test_what_only_the_shadow_would_refuse_is_counted():
    label = "plugins: [{type: by-label-selector, parameters: {matchLabels: {a: b}}}]"
    pair = Pair(shadow=label)
    pair.route("r1", "x")
    assert pair.shadow.tally.refused == 1


async def test_a_line_says_what_a_minute_brought_and_nothing_without_traffic(monkeypatch):
    monkeypatch.setattr(shadow, "_REPORT_SECONDS", 0.001)
    pair = Pair("round-robin", shadow="round-robin")
    with capture_logs() as logs:
        async with running(pair.shadow.run()):
            for number in (1, 2):
                pair.route(f"r{number}", text(100))
                await until(lambda number=number: len(logs) == number)
        tally, line = pair.shadow.tally, {"event": "shadow", "log_level": "info"}
        tally.agreed, tally.differed, tally.refused, tally.failed = 1, 3, 2, 5
        tally.live_ttft, tally.shadow_ttft = 3.0, 2.0
        tally.live_cached, tally.shadow_cached = 100, 300
        pair.shadow.report(tally)
    assert [each["compared"] for each in logs[:2]] == [1, 1]
    assert logs[2] == line | {
        "policy": "round-robin",
        "compared": 4,
        "agreed": 0.25,
        "refused": 2,
        "failed": 5,
        "predicted_ttft_gain": 0.25,
        "predicted_cached_tokens_gain": 50.0,
    }


def test_its_families_are_on_the_page():
    pair = Pair(shadow="random", pods=1)
    pair.route("r1", text(100))
    lines = "".join(each.lines() for each in Observers((pair.shadow.observer,)).collect())
    for outcome, times in {"agreed": 1, "differed": 0, "refused": 0, "failed": 0}.items():
        labels = f'policy="random",outcome="{outcome}"'
        assert f"warmpick_shadow_decisions_total{{{labels}}} {times}.0\n" in lines
    for side in ("live", "shadow"):
        labels = f'policy="random",decision="{side}"'
        assert f"warmpick_shadow_predicted_cached_tokens_total{{{labels}}} 0.0\n" in lines
        assert f"warmpick_shadow_predicted_ttft_seconds_total{{{labels}}} " in lines
