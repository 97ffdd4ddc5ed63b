"""Ranks of one server: a step ends when the slowest rank's does."""

import random
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.replay.engines.contract import Job, Limits, Progress
from epp.replay.engines.cost import StepCost
from epp.replay.engines.engine import Engine
from epp.replay.engines.lockstep import step_together
from epp.replay.simulation.clock import Clock
from epp.replay.traffic.calls import Run

PLAIN = StepCost(
    step_ms=10,
    prefill_us_per_token=100,
    attention_ns=0,
    decode_us_per_seq=1000,
    decode_ns_per_context_token=0,
)


class Server:
    """Some ranks, what each is sent, and what is heard."""

    def __init__(self, ranks=2, cost=PLAIN, progress_tokens=64):
        self.clock, self.heard = Clock(), {}
        self.ranks = [
            Engine(Limits(), cost, self.clock, self.hear, progress_tokens=progress_tokens)
            for _ in range(ranks)
        ]
        step_together(self.clock, self.ranks)
        self.sent = 0

    def hear(self, job, progress):
        if progress is not Progress.SOME:
            self.heard[job.number, progress.name] = self.clock.now

    def send(self, at, rank, prompt, response):
        job = Job(self.sent, [Run(1 + self.sent, prompt)], [Run(1000 + self.sent, response)])
        self.sent += 1
        self.clock.at(at, partial(self.ranks[rank].submit, job))

    def run(self):
        self.clock.run(lambda: False)
        return {key: round(at, 6) for key, at in self.heard.items()}


def test_a_short_prompt_waits_for_the_long_one_of_another_rank():
    server = Server()
    server.send(0, 0, 1000, 1)
    server.send(0, 1, 10, 3)
    # 110 ms of both; then the second rank alone, twice 11 ms.
    assert server.run() == {
        (0, "FIRST"): 0.11,
        (0, "LAST"): 0.11,
        (1, "FIRST"): 0.11,
        (1, "LAST"): 0.132,
    }


def test_an_arrival_at_one_rank_ends_the_steps_at_once_of_all():
    server = Server()
    server.send(0, 0, 100, 50)
    server.send(0.025, 1, 100, 1)
    # The first rank decodes from 20 ms on, 11 ms each; the second's prompt takes 20 ms after 31.
    times = server.run()
    assert times[1, "FIRST"] == 0.051
    assert times[0, "LAST"] == round(0.051 + 47 * 0.011, 6)


def test_the_slowest_of_several_that_decode_can_change():
    # One sequence with a long context, and many whose context grows faster together.
    cost = StepCost(
        step_ms=1,
        prefill_us_per_token=0,
        attention_ns=0,
        decode_us_per_seq=0,
        decode_ns_per_context_token=1000,
    )
    at_once, single = Server(2, cost), Server(2, cost, progress_tokens=1)
    for server in (at_once, single):
        server.send(0, 0, 500, 100)
        for _ in range(10):
            server.send(0, 1, 46, 100)
    assert at_once.run() == pytest.approx(single.run())


def test_a_rank_that_dies_leaves_the_others_in_step():
    server = Server()
    server.send(0, 0, 100, 50)
    server.send(0, 1, 100, 5)
    server.clock.at(0.025, server.ranks[0].kill)
    server.send(0.03, 0, 100, 1)
    times = server.run()
    assert (times[0, "LOST"], times[2, "LOST"]) == (0.025, 0.03)
    assert times[1, "LAST"] == round(0.02 + 4 * 0.011, 6)


def test_all_ranks_dead_and_back():
    server = Server()
    server.send(0, 0, 100, 50)
    for rank in server.ranks:
        server.clock.at(0.025, rank.kill)
        server.clock.at(0.026, rank.start)
    server.send(0.03, 1, 100, 1)
    assert server.run()[1, "LAST"] == 0.05


@pytest.mark.parametrize(("sent", "first", "stalled"), [(0.0, 0.02, 5.0), (1.5, 6.02, 0.0)])
def test_a_server_stalls_once_whatever_its_number_of_ranks(sent, first, stalled):
    server = Server(ranks=3)
    server.send(sent, 0, 100, 200)
    for rank in server.ranks:
        server.clock.at(1.0, partial(rank.stall, 5.0))
    times = server.run()
    assert times[0, "FIRST"] == first
    assert times[0, "LAST"] == round(first + stalled + 199 * 0.011, 6)


@given(st.integers(0, 1 << 32))
def test_steps_at_once_end_when_they_do_one_by_one(seed):
    rng = random.Random(seed)  # noqa: S311
    sent, at = [], 0.0
    for _ in range(20):
        at += rng.expovariate(5)
        sent.append((at, rng.randrange(3), rng.randrange(1, 3000), rng.randrange(1, 150)))
    servers = Server(3, StepCost()), Server(3, StepCost(), progress_tokens=1)
    for server in servers:
        for each in sent:
            server.send(*each)
    at_once, single = (server.run() for server in servers)
    assert at_once == pytest.approx(single, abs=1e-5)
