"""Requests that come, wait and go in any order, while anything happens to the endpoints."""

import contextlib

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.errors import Overloaded
from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved
from tests.model.invariants import check_invariants
from tests.policy.flow.flow_rig import FlowRig


class AnyOrder(RuleBasedStateMachine):
    """Whatever comes and happens: the counts agree, and each request goes within its bound."""

    def __init__(self):
        super().__init__()
        self.rig = FlowRig(pods=2, capacity=20_000, most_seconds=60.0, empty_seconds=45.0)
        self.came = {}
        self.number = 0

    @rule(
        tokens=st.sampled_from((1, 100, 3000, 8000, 30_000)),
        most=st.sampled_from((None, 1, 500, 10**9)),
        flow=st.sampled_from(("a", "b", "c")),
        priority=st.sampled_from((-1, 0, 0, 2)),
        answers=st.sampled_from((1, 1, 3, 128)),
    )
    def come(self, tokens, most, flow, priority, answers):
        self.number += 1
        name = f"r{self.number}"
        self.came[name] = self.rig.now
        more = {"max_tokens": most, "fairness_id": flow, "priority": priority, "n": answers}
        more["size"] = 7
        if priority < 0:  # which may be dropped at once
            with contextlib.suppress(Overloaded):
                self.rig.come(name, tokens, **more)
        else:
            self.rig.come(name, tokens, **more)

    @rule(seconds=st.sampled_from((0.01, 0.5, 5.0, 61.0)))
    def wait(self, seconds):
        self.rig.wait(seconds)
        self.rig.release()

    @rule(which=st.integers(0, 30), how=st.sampled_from(("begin", "go_on", "end", "abort")))
    def progress(self, which, how):
        names = sorted(self.rig.sent)
        if names:
            name = names[which % len(names)]
            getattr(self.rig, how)(name, *((50,) if how == "go_on" else ()))

    @rule(which=st.integers(0, 30))
    def withdraw(self, which):
        names = sorted(self.rig.held)
        if names:
            self.rig.flow.withdraw(self.rig.held.pop(names[which % len(names)]))

    @rule(
        name=st.sampled_from(("pod-0", "pod-1")),
        usage=st.sampled_from((0.0, 0.5, 1.0)),
        running=st.sampled_from((0.0, 3.0)),
        waiting=st.sampled_from((0.0, 2.0)),
    )
    def report(self, name, usage, running, waiting):
        self.rig.say(name, kv_usage=usage, running=running, waiting=waiting, counted=True)

    @rule(name=st.sampled_from(("pod-0", "pod-1")))
    def leave(self, name):
        self.rig.apply(EndpointRemoved(EndpointId(f"default/{name}")))

    @rule(name=st.sampled_from(("pod-0", "pod-1")))
    def join(self, name):
        self.rig.add(name, f"10.0.0.{int(name[-1]) + 1}")

    @rule(name=st.sampled_from(("pod-0", "pod-1")))
    def restart(self, name):
        self.rig.apply(EndpointRemoved(EndpointId(f"default/{name}")))
        self.rig.add(name, f"10.0.0.{int(name[-1]) + 1}")
        self.rig.say(name)

    @invariant()
    def the_line_has_those_that_wait(self):
        line = self.rig.flow.line
        assert line.requests == len(self.rig.held) == sum(each[1] for each in line.bands())
        assert line.bytes == 7 * len(self.rig.held)
        assert (self.rig.until() is not None) == bool(self.rig.held)

    @invariant()
    def the_seconds_at_each_place_are_those_of_what_waits_there(self):
        line, waiting = self.rig.flow.line, list(self.rig.held.values())
        assert line.seconds == pytest.approx(sum(each.seconds for each in waiting), abs=1e-6)
        for one in waiting:
            for place in {each.endpoint_id for each in waiting}:
                there = [
                    each.seconds
                    for each in waiting
                    if each.endpoint_id == place and each.request.priority == one.request.priority
                ]
                assert line.seconds_at(one, place) == pytest.approx(sum(there), abs=1e-6)

    @invariant()
    def none_waits_beyond_its_bound_once_looked_at(self):
        if self.rig.until() is not None and self.rig.until() <= self.rig.now:
            self.rig.release()
        assert all(self.rig.now - self.came[name] < 60.0 for name in self.rig.held)

    def teardown(self):
        self.rig.fleet._index.purge(1 << 20)  # it forgets endpoints bit by bit
        check_invariants(self.rig.fleet)


AnyOrder.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
test_any_order = AnyOrder.TestCase
