"""The engine of replay beside the one of `model-server`, which takes every step by itself."""

from array import array
from functools import partial

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from model_server.simulator.scheduler import Request, Token
from model_server.simulator.settings import Limits as SimulatorLimits

from bench.accuracy.virtual import Pods
from epp.replay.engines.contract import Job, Limits, Progress
from epp.replay.engines.cost import StepCost
from epp.replay.engines.engine import Engine
from epp.replay.simulation.clock import Clock
from epp.replay.traffic.calls import Run

LIMITS = Limits(block_size=64, num_gpu_blocks=5000, max_num_batched_tokens=1 << 20)
"""No prompt is cut: one whose last token is left by itself decodes it here, but not there."""
SIMULATOR_LIMITS = SimulatorLimits(
    block_size=LIMITS.block_size,
    num_gpu_blocks=LIMITS.num_gpu_blocks,
    max_num_batched_tokens=LIMITS.max_num_batched_tokens,
)
ANSWERED = 1 << 20
"""The token of all responses, which is not a prompt's."""

ARRIVALS = st.lists(
    st.tuples(st.floats(0.001, 3), st.integers(2, 30_000), st.integers(1, 200)),
    min_size=1,
    max_size=12,
)
"""Seconds since the one before, prompt and response."""


def times(arrivals):
    at = 0.0
    for number, (gap, size, answer) in enumerate(arrivals):
        at += gap
        yield at, number, size, answer


def in_replay(arrivals):
    clock, told = Clock(), []

    def listen(job, progress):
        if progress is not Progress.SOME:
            told.append((job.number, progress is Progress.FIRST, clock.now))

    engine = Engine(LIMITS, StepCost(), clock, listen)
    for at, number, size, answer in times(arrivals):
        job = Job(number, [Run(number, size)], [Run(ANSWERED, answer)])
        clock.at(at, partial(engine.submit, job))
    clock.run(lambda: False)
    return told


def in_the_simulator(arrivals):
    clock, told = Clock(), []
    numbers: dict[Request, int] = {}

    def tell(sampled):
        number = numbers[sampled.request]
        if sampled.first:
            told.append((number, True, clock.now))
        if sampled.finish is not None:
            told.append((number, False, clock.now))

    pods = Pods(["a"], SIMULATOR_LIMITS, clock, tell)
    for at, number, size, answer in times(arrivals):
        source = (Token(ANSWERED, "") for _ in range(answer))
        asked = Request(array("I", [number] * size), answer, source)
        numbers[asked] = number
        clock.at(at, partial(pods.submit, "a", asked))
    clock.run(lambda: False)
    return told


@settings(max_examples=10, derandomize=True, phases=(Phase.explicit, Phase.generate))
@given(ARRIVALS)
def test_tokens_come_when_they_do_from_the_simulator(arrivals):
    found, expected = sorted(in_replay(arrivals)), sorted(in_the_simulator(arrivals))
    assert [each[:2] for each in found] == [each[:2] for each in expected]
    assert [each[2] for each in found] == pytest.approx([each[2] for each in expected], abs=1e-6)
