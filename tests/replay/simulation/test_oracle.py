"""The oracle: what it is told of pods is what then happens there."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from epp.replay.engines.contract import Limits
from epp.replay.plan import PodPlan, RunPlan
from epp.replay.policies import NAMED
from epp.replay.simulation.run import Simulation
from epp.replay.traffic.calls import Call, Run, Trace, ordered

FAST, SLOW = PodPlan(), PodPlan(speed=0.25)
STEP, TOKEN, ATTENDED = 6e-3, 40e-6, 1.75e-9
SEQUENCE, CONTEXT = 20e-6, 56e-9
"""StepCost's defaults, in seconds."""


def call(name, *, at, size, answer=1, shared=0):
    """A prompt that shares its first tokens with all, and has the others for itself."""
    runs = [Run(1, shared)] if shared else []
    if size > shared:
        runs.append(Run(1_000 + name, size - shared))
    answer = (Run(2_000_000 + name, answer),)
    return Call(at=at, prompt=tuple(runs), response=answer, session=name)


def played(calls, pods):
    trace = Trace(name="test", calls=ordered(calls))
    return Simulation(trace, RunPlan(policy=NAMED["oracle"], pods=pods)).run().outcomes


def prefill(uncached, cached=0):
    return TOKEN * uncached + ATTENDED * uncached * (cached + uncached / 2)


def test_it_knows_at_once_which_pod_is_slow_what_is_queued_and_what_is_cached():
    # 8,000 tokens take the fast pod 0.382 s. A tenth of a second later 0.282 s of it are left, and
    # 1,000 more take 0.047 s there: the slow pod, which is idle, has them in 0.188 s. 5,000 tokens
    # of which 4,800 come from the cache wait less at the fast one than they take the slow one.
    outcomes = played(
        [
            call(0, at=0.0, size=8_000, shared=4_800),
            call(1, at=0.1, size=1_000),
            call(2, at=0.2, size=5_000, shared=4_800),
        ],
        (SLOW, FAST),
    )
    first, second, third = outcomes
    assert [each.endpoint for each in outcomes] == [1, 0, 1]
    assert first.predicted_ttft == pytest.approx(STEP + prefill(8_000))
    assert second.predicted_ttft == pytest.approx(4 * (STEP + prefill(1_000)))
    left = STEP + prefill(8_000) - 0.2
    assert third.predicted_ttft == pytest.approx(left + STEP + prefill(200, cached=4_800))
    assert third.predicted_cached == third.cached == 4_800
    for each in outcomes:
        assert each.ttft == pytest.approx(each.predicted_ttft)


prompts = st.tuples(st.floats(0, 0.5), st.integers(1, 20_000), st.floats(0, 1))


@given(st.lists(prompts, min_size=1, max_size=6), st.sampled_from([256, 8192]))
@example([(0.0, 308, 0.9375), (0.5, 4897, 1.0)], 256)
@settings(max_examples=60, deadline=None)
def test_a_prompt_that_none_follows_takes_as_long_as_it_was_told(drawn, budget):
    at, calls = 0.0, []
    for name, (gap, size, share) in enumerate(drawn):
        at += gap
        calls.append(call(name, at=at, size=size, shared=int(size * share)))
    limits = Limits(max_num_batched_tokens=budget)
    pods = [PodPlan(limits=limits, speed=speed) for speed in (1.0, 0.4)]
    last = played(calls, pods)[-1]
    # A chunk of one token computes like a decode.
    decode = (SEQUENCE + CONTEXT * 20_000) / 0.4
    assert last.ttft == pytest.approx(last.predicted_ttft, rel=1e-6, abs=len(drawn) * decode)
    assert last.cached == last.predicted_cached
