"""What a picker believes of load between two reports of it."""

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from epp.model.request import Api, InferenceRequest, Prompt, RequestId
from epp.replay.engines.contract import Limits
from epp.replay.plan import PodPlan, RunPlan
from epp.replay.policies import NAMED
from epp.replay.simulation.run import Simulation
from epp.replay.traffic.calls import Call, Run, Trace
from epp.replay.traffic.copies import superposed

AT_ONCE = replace(NAMED["linear"], flow=None)
RARELY, EVERY_5_S = (replace(AT_ONCE, scrape_seconds=seconds) for seconds in (1000.0, 5.0))
POD = PodPlan(limits=Limits(block_size=64, num_gpu_blocks=25_000))
STEP = 0.8
"""Seconds of the longest step of prompts of up to 30,000 tokens."""
LONGEST = 30_000 / 1.6e6
"""The share of the cache that the longest prompt takes."""
LOOK_SECONDS = 0.05

ARRIVALS = st.lists(
    st.tuples(st.floats(0, 3), st.integers(1, 30_000), st.integers(1, 200)), min_size=1, max_size=12
)


def trace_of(arrivals):
    """Requests that come one after another, and a copy of each at about the same time."""
    at, calls = 0.0, []
    for number, (gap, size, answer) in enumerate(arrivals):
        at += gap
        prompt, response = (Run(2 * number, size),), (Run(2 * number + 1, answer),)
        calls.append(Call(at=at, prompt=prompt, response=response, session=number))
    return superposed(Trace(name="test", calls=calls), 2, seed=1)


class Watched:
    """A run of which the load that is believed and that of the engines is looked at."""

    def __init__(self, arrivals, policy):
        self.believed, self.true, self.computed = [], [], []
        self.run = Simulation(trace_of(arrivals), RunPlan(policy=policy, pods=(POD, POD), seed=1))
        (picker,) = self.run.pickers
        self.fleet = picker.fleet
        self.run.clock.at(0.0, self.look)
        self.played = self.run.run()

    def computing(self, pod):
        """How many prompts it computes: no token was heard of them, nor do they wait."""
        sent = [
            each
            for each in self.fleet.in_flight.values()
            if each.pod.endpoint.id == pod.endpoint.id
        ]
        return sum(each.began is None for each in sent) - pod.engine.load.waiting

    def look(self):
        clock, pods = self.run.clock, self.run.pods
        probe = InferenceRequest(id=RequestId("p"), api=Api.CHAT, prompts=(Prompt(b"x"),))
        candidates = self.fleet.candidates(self.fleet.quote(probe, clock.now), clock.now)
        assert [each.endpoint.id for each in candidates] == [pod.endpoint.id for pod in pods]
        self.believed.append([(each.waiting, each.running, each.kv_usage) for each in candidates])
        self.true.append([pod.engine.load for pod in pods])
        self.computed.append([self.computing(pod) for pod in pods])
        clock.at(clock.now + LOOK_SECONDS, self.look)


@settings(max_examples=10, derandomize=True, phases=(Phase.explicit, Phase.generate))
@given(ARRIVALS)
def test_between_rare_reports_the_load_is_the_engines(arrivals):
    """All requests are counted at any moment; those that wait to a step, and a prompt in it.

    The engine counts a prompt that it computes as running: where the picker believes that another
    one of the step came first, it is one more or less that waits, while any is computed.
    """
    watched = Watched(arrivals, RARELY)
    reach = int(STEP / LOOK_SECONDS)
    for place, loads in enumerate(watched.believed):
        around = watched.true[max(0, place - reach) : place + reach + 1]
        for pod, (waiting_now, running_now, usage) in enumerate(loads):
            now = watched.true[place][pod]
            assert waiting_now + running_now == now.waiting + now.running
            waiting = [each[pod].waiting for each in around]
            slack = int(watched.computed[place][pod] > 0)
            assert min(waiting) - slack <= waiting_now <= max(waiting) + slack
            # Of a prompt that is under way the engine has allocated what it has computed.
            assert abs(usage - now.usage) <= LONGEST * (now.running + now.waiting + 1)


def served_beside_a_long_request(policy):
    """Send ten at once while one pod has been busy for two reports; count those beside it."""
    runs = [(0.0, 30_000, 2_000), *((11 + number / 100, 20_000, 100) for number in range(10))]
    calls = [
        Call(at=at, prompt=(Run(2 * name, size),), response=(Run(2 * name + 1, answer),), session=1)
        for name, (at, size, answer) in enumerate(runs)
    ]
    trace = Trace(name="test", calls=calls)
    long, *others = Simulation(trace, RunPlan(policy=policy, pods=(POD, POD))).run().outcomes
    assert long.end_to_end > 12.0
    return sum(each.endpoint == long.endpoint for each in others)


def test_by_reports_alone_all_go_to_the_pod_that_was_reported_idle():
    assert served_beside_a_long_request(replace(EVERY_5_S, as_reported=True)) == 0


def test_what_was_sent_since_the_report_counts():
    # In KV cache the long one takes the place of one or two of the others.
    assert 4 <= served_beside_a_long_request(EVERY_5_S) <= 5
